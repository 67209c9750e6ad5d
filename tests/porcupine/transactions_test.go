package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// A line: times, how it ended, and steps such as "x=3", "x?3", "l+4", "l+4#2", "x-", "x-true".
func line(invoked, returned int, ended string, steps ...string) string {
	var all []string
	for _, s := range steps {
		key, rest := s[:1], s[2:]
		var what string
		switch s[1] {
		case '=':
			what = fmt.Sprintf(`{"Set":{"token":%s}}`, rest)
		case '?':
			what = fmt.Sprintf(`{"Read":{"saw":[%s]}}`, rest)
		case '+':
			token, length, told := strings.Cut(rest, "#")
			if !told {
				length = "null"
			}
			what = fmt.Sprintf(`{"Append":{"token":%s,"length":%s}}`, token, length)
		case '-':
			if rest == "" {
				rest = "null"
			}
			what = fmt.Sprintf(`{"Delete":{"found":%s}}`, rest)
		}
		all = append(all, fmt.Sprintf(`{"key":"%s","holds":"List","what":%s}`, key, what))
	}
	end := fmt.Sprint(returned)
	if ended == "Unknown" {
		end = "18446744073709551615"
	}
	return fmt.Sprintf(`{"transaction":[%s],"client":1,"invoked":%d,"returned":%s,"ended":"%s"}`,
		strings.Join(all, ","), invoked, end, ended)
}

// What comes of a history, the worst of its windows.
func judge(t *testing.T, lines ...string) porcupine.CheckResult {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	_, all, err := read(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range windows(all) {
		if result := w.check(); result != porcupine.Ok {
			return result
		}
	}
	return porcupine.Ok
}

func TestHistories(t *testing.T) {
	done := func(steps ...string) string { return line(10, 90, "Done", steps...) }
	for _, c := range []struct {
		name string
		fine bool
		all  []string
	}{
		{"reads see writes", true, []string{done("x=1", "l+2"), done("x?1", "l?2")}},
		{"half is seen", false, []string{done("x=1", "l+2"), done("x?1", "l?")}},
		{"write skew", false, []string{done("l?", "m+1"), done("m?", "l+2")}},
		{"writes go around", false, []string{done("l+1", "m+3"), done("l+2", "m+4"), done("l?1,2"), done("m?4,3")}},
		{"information goes around", false, []string{done("x=1", "y?2"), done("y=2", "x?1")}},
		{"aborted", false, []string{line(1, 2, "NotDone", "x=1"), done("x?1")}},
		{"stale", false, []string{line(1, 2, "Done", "x=1"), line(3, 4, "Done", "x=2"), line(5, 6, "Done", "x?1")}},
		{"fresh", true, []string{line(1, 2, "Done", "x=1"), line(3, 4, "Done", "x=2"), line(5, 6, "Done", "x?2")}},
		{"lost append", false, []string{line(1, 2, "Done", "l+1"), line(3, 4, "Done", "l?")}},
		{"appended twice", false, []string{line(1, 2, "Done", "l+1"), line(3, 4, "Done", "l?1,1")}},
		{"places", true, []string{done("l+1#2"), done("l+2#1"), done("l?2,1")}},
		{"wrong places", false, []string{done("l+1#2"), done("l+2#1"), done("l?1,2")}},
		{"deletes", true, []string{line(1, 2, "Done", "x=1"), line(3, 4, "Done", "x-true"), line(5, 6, "Done", "x-false")}},
		{"deleted twice", false, []string{line(1, 2, "Done", "x=1"), line(3, 4, "Done", "x-true"), line(5, 6, "Done", "x-true")}},
		{"unknown, done late", true, []string{line(1, 0, "Unknown", "x=1"), line(3, 4, "Done", "x?"), line(5, 6, "Done", "x?1")}},
		{"unknown, undone", false, []string{line(1, 0, "Unknown", "x=1"), line(3, 4, "Done", "x?1"), line(5, 6, "Done", "x?")}},
		{"unknown, by halves", false, []string{line(1, 0, "Unknown", "x=1", "y=2"), line(3, 4, "Done", "x?1", "y?")}},
		{"its condition holds", true, []string{line(1, 0, "Unknown", "x?", "x=1"), line(3, 4, "Done", "x?1")}},
		{"its condition does not", false, []string{line(1, 2, "Done", "x=9"), line(3, 0, "Unknown", "x?", "x=1"), line(5, 6, "Done", "x?1")}},
	} {
		if fine := judge(t, c.all...) == porcupine.Ok; fine != c.fine {
			t.Errorf("%s: fine is %v", c.name, fine)
		}
	}
}

// One key with more operations than a window has.
func long() []string {
	var all []string
	for i := range 3 * windowMax {
		all = append(all, line(4*i+1, 4*i+2, "Done", fmt.Sprintf("x=%d", i)))
	}
	return all
}

func TestLongHistoriesAreCut(t *testing.T) {
	all := long()
	end := 4 * len(all)
	if judge(t, append(all, line(end+1, end+2, "Done", fmt.Sprintf("x?%d", 3*windowMax-1)))...) != porcupine.Ok {
		t.Error("a long history is not fine")
	}
	// Also an error behind the cut shows.
	if judge(t, append(all, line(end+1, end+2, "Done", fmt.Sprintf("x?%d", 3*windowMax-2)))...) == porcupine.Ok {
		t.Error("a stale read is fine")
	}
	if parts := cut(transactions(t, all)); len(parts) < 3 {
		t.Errorf("there are %d windows", len(parts))
	}
}

func transactions(t *testing.T, lines []string) []*transaction {
	var all []*transaction
	for i, l := range lines {
		one, err := readTransaction([]byte(l), i)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	return all
}

func TestWindowsStayClosedAndSmall(t *testing.T) {
	// Two groups of keys, and few transactions that meet both.
	var all []string
	tick := 1
	for i := range 150 {
		all = append(all, line(tick, tick+1, "Done", fmt.Sprintf("a+%d", 4*i), fmt.Sprintf("b+%d", 4*i+1)))
		all = append(all, line(tick+2, tick+3, "Done", fmt.Sprintf("c+%d", 4*i+2), fmt.Sprintf("d+%d", 4*i+3)))
		tick += 4
	}
	all = append(all, line(tick, tick+1, "Done", "a+9001", "c+9002"))
	var names []string
	for _, w := range windows(transactions(t, all)) {
		names = append(names, w.name)
		if len(w.operations()) > windowMax {
			t.Errorf("%s has %d operations", w.name, len(w.operations()))
		}
	}
	if fmt.Sprint(names) != "[a b c d]" && fmt.Sprint(names) != "[a b c d a c]" {
		t.Errorf("windows are %q", names)
	}
}
