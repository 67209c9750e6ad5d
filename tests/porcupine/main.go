// Second opinion on histories of `pluvio torture`: Porcupine (https://github.com/anishathalye/porcupine)
// searches an order for the history of each key, and for windows of the transactions (windows.go).
//
//	go run . history.jsonl
//
// The file has one operation a line, as docs/torture.md says. Exit code 0: no history is wrong; 1: one is, or the file
// cannot be read. The model below was written from the documentation, not from the checker of crate sim:
// an error that both make has to be made twice.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// How long one key may take.
const limit = 20 * time.Second

// Keys at a time.
const workers = 2

type content struct {
	Bytes   *uint64
	Number  *int64
	Damaged *uint64
	word    string
}

// A unit variant is a string, any other one an object with one field.
func (c *content) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &c.word)
	}
	type plain content
	return json.Unmarshal(text, (*plain)(c))
}

func (c content) String() string {
	switch {
	case c.Bytes != nil:
		return fmt.Sprintf("value #%d", *c.Bytes)
	case c.Number != nil:
		return fmt.Sprintf("number %d", *c.Number)
	case c.Damaged != nil:
		return fmt.Sprintf("damaged %x", *c.Damaged)
	default:
		return c.word
	}
}

// When an operation goes ahead; a version 0 is no object.
type condition struct {
	Absent, Present bool
	Is              *uint64
	IsNot           *uint64 `json:"is_not"`
	AtLeast         *uint64 `json:"at_least"`
}

func (c *condition) allows(version uint64) bool {
	switch {
	case c == nil:
		return true
	case version == 0:
		return !c.Present
	default:
		return !c.Absent && (c.Is == nil || *c.Is == version) && (c.IsNot == nil || *c.IsNot != version) &&
			(c.AtLeast == nil || *c.AtLeast <= version)
	}
}

type action struct {
	ReadIf *struct{ Condition *condition }
	Write  *struct {
		Content   content
		Condition *condition
	}
	Delete *struct{ Condition *condition }
	Add    *struct {
		By        int64
		Condition *condition
	}
	word string
}

func (a action) condition() *condition {
	switch {
	case a.ReadIf != nil:
		return a.ReadIf.Condition
	case a.Write != nil:
		return a.Write.Condition
	case a.Delete != nil:
		return a.Delete.Condition
	case a.Add != nil:
		return a.Add.Condition
	default:
		return nil
	}
}

func (a action) isRead() bool { return a.word == "Read" || a.ReadIf != nil }

func (a *action) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &a.word)
	}
	type plain action
	return json.Unmarshal(text, (*plain)(a))
}

// An answer without versions.
type plainAnswer struct {
	Found    *struct{ Content content }
	Replaced *struct{ Old *content }
	Added    *struct{ Sum int64 }
	word     string
}

func (p *plainAnswer) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &p.word)
	}
	type plain plainAnswer
	return json.Unmarshal(text, (*plain)(p))
}

type outcome struct {
	Found *struct {
		Version uint64
		Content content
	}
	Wrote   *struct{ Version, Replaced uint64 }
	Deleted *struct{ Version uint64 }
	Added   *struct {
		Version uint64
		Sum     int64
	}
	Rejected *struct{ Version uint64 }
	Plain    *plainAnswer
	word     string
}

func (o *outcome) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &o.word)
	}
	type plain outcome
	return json.Unmarshal(text, (*plain)(o))
}

type record struct {
	Key      string
	Client   int
	Action   action
	Invoked  int64
	Returned uint64
	Outcome  outcome
}

// What is known of an object: its value ("" is no object), and its version, or a bound that it is not below.
type state struct {
	value string
	there bool
	least uint64
	exact bool
}

// Whether the object may have this version; 0 stands for no object.
func (s state) canBe(version uint64) bool {
	if !s.there {
		return version == 0
	}
	return version == s.least || (!s.exact && version > s.least)
}

// The state, told this version.
func (s state) told(version uint64) state {
	if s.there {
		s.least, s.exact = version, true
	}
	return s
}

// Whether the condition can hold in this state, and what is known of the state then.
func (s state) meets(c *condition) (bool, state) {
	switch {
	case c == nil:
		return true, s
	case !s.there:
		return c.allows(0), s
	case s.exact:
		return c.allows(s.least), s
	case c.Is != nil:
		return s.canBe(*c.Is) && c.allows(*c.Is), s.told(*c.Is)
	}
	if c.AtLeast != nil && *c.AtLeast > s.least {
		s.least = *c.AtLeast
	}
	if c.IsNot != nil && *c.IsNot == s.least {
		s.least++
	}
	return !c.Absent, s
}

// The state after a write that made a version nobody was told.
func (s state) set(value string) state {
	return state{value: value, there: true, least: s.least + 1}
}

// The state after a write that made this version.
func (s state) setTo(value string, version uint64) (bool, state) {
	return version > s.least, state{value: value, there: true, least: version, exact: true}
}

func (s state) gone() state {
	s.value, s.there = "", false
	return s
}

func (s state) number() (int64, bool) {
	if !s.there {
		return 0, true
	}
	var n int64
	_, err := fmt.Sscanf(s.value, "number %d", &n)
	return n, err == nil
}

func number(n int64) string { return fmt.Sprintf("number %d", n) }

// Whether the answer is right for this state, and the state after it.
func step(before, input, output any) (bool, any) {
	s, a, o := before.(state), input.(action), output.(outcome)
	if o.word == "Unknown" {
		// It may have no effect; then it stands at the end, where nobody looks.
		return true, apply(s, a)
	}
	ok, after := answered(s, a, o)
	return ok, after
}

// The state after an operation that nobody got an answer to, where it has an effect.
func apply(s state, a action) state {
	holds, met := s.meets(a.condition())
	if !holds {
		return s
	}
	switch {
	case a.Write != nil:
		return met.set(a.Write.Content.String())
	case a.Delete != nil:
		return met.gone()
	case a.Add != nil:
		n, ok := s.number()
		if !ok {
			return s
		}
		return met.set(number(n + a.Add.By))
	default:
		return s
	}
}

func answered(s state, a action, o outcome) (bool, state) {
	c := a.condition()
	switch {
	case o.Rejected != nil:
		v := o.Rejected.Version
		return c != nil && !c.allows(v) && s.canBe(v), s.told(v)
	case a.isRead():
		switch {
		case o.word == "Missing":
			return !s.there && c.allows(0), s
		case o.Found != nil:
			v := o.Found.Version
			return s.there && s.canBe(v) && c.allows(v) && s.value == o.Found.Content.String(), s.told(v)
		case o.Plain != nil && o.Plain.Found != nil:
			return s.there && s.value == o.Plain.Found.Content.String(), s
		}
	case a.Write != nil:
		value := a.Write.Content.String()
		switch {
		case o.Wrote != nil:
			if !c.allows(o.Wrote.Replaced) || !s.canBe(o.Wrote.Replaced) {
				return false, s
			}
			return s.told(o.Wrote.Replaced).setTo(value, o.Wrote.Version)
		case o.Plain == nil:
			return false, s
		case o.Plain.Replaced != nil:
			old := o.Plain.Replaced.Old
			fits := old == nil && !s.there || old != nil && s.there && s.value == old.String()
			return fits, s.set(value)
		case o.Plain.word == "Wrote":
			holds, met := s.meets(c)
			return holds, met.set(value)
		case o.Plain.word == "Refused":
			// SETNX: there was an object.
			return c != nil && c.Absent && s.there, s
		}
	case a.Delete != nil:
		switch {
		case o.Deleted != nil:
			v := o.Deleted.Version
			return c.allows(v) && s.canBe(v), s.told(v).gone()
		case o.Plain != nil && o.Plain.word == "Deleted":
			return s.there, s.gone()
		case o.Plain != nil && o.Plain.Replaced != nil:
			old := o.Plain.Replaced.Old
			return old != nil && s.there && s.value == old.String(), s.gone()
		}
	case a.Add != nil:
		n, isNumber := s.number()
		sum := n + a.Add.By
		holds, met := s.meets(c)
		switch {
		case o.Added != nil:
			fits, after := met.setTo(number(sum), o.Added.Version)
			return holds && fits && isNumber && sum == o.Added.Sum, after
		case o.Plain != nil && o.Plain.Added != nil:
			return holds && isNumber && sum == o.Plain.Added.Sum, met.set(number(sum))
		}
	}
	return false, s
}

var model = porcupine.Model{
	Init: func() any { return state{exact: true} },
	Step: step,
}

// The operations on each key, and the transactions.
func read(path string) (map[string][]porcupine.Operation, []*transaction, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	keys := map[string][]porcupine.Operation{}
	var transactions []*transaction
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for number := 1; lines.Scan(); number++ {
		switch {
		case bytes.HasPrefix(lines.Bytes(), []byte(`{"transfer":`)):
			// The checker of the torture alone judges the accounts.
			continue
		case bytes.HasPrefix(lines.Bytes(), []byte(`{"transaction":`)):
			t, err := readTransaction(lines.Bytes(), number)
			if err != nil {
				return nil, nil, fmt.Errorf("%s, line %d: %w", path, number, err)
			}
			if t != nil {
				transactions = append(transactions, t)
			}
			continue
		}
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, nil, fmt.Errorf("%s, line %d: %w", path, number, err)
		}
		known := keys[r.Key]
		end := int64(r.Returned)
		switch r.Outcome.word {
		case "NotDone":
			keys[r.Key] = known
			continue
		case "Unknown":
			if r.Action.isRead() {
				continue
			}
			// After everything that was answered, each at a time of its own.
			end = math.MaxInt64/2 + int64(number)
		}
		keys[r.Key] = append(known, porcupine.Operation{
			ClientId: r.Client, Input: r.Action, Call: r.Invoked, Output: r.Outcome, Return: end,
		})
	}
	return keys, transactions, lines.Err()
}

// Checks all of these at a time; gives their names, by what came of them.
func checkAll(count int, check func(int) (string, porcupine.CheckResult)) map[porcupine.CheckResult][]string {
	places := make(chan int)
	results := map[porcupine.CheckResult][]string{}
	var lock sync.Mutex
	var all sync.WaitGroup
	for range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			for place := range places {
				name, result := check(place)
				lock.Lock()
				results[result] = append(results[result], name)
				lock.Unlock()
			}
		}()
	}
	for place := range count {
		places <- place
	}
	close(places)
	all.Wait()
	for _, names := range results {
		sort.Strings(names)
	}
	return results
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "error: give the file of a history")
		os.Exit(2)
	}
	keys, transactions, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	names := slices.Sorted(maps.Keys(keys))
	results := checkAll(len(names), func(place int) (string, porcupine.CheckResult) {
		name := names[place]
		return name, porcupine.CheckOperationsTimeout(model, keys[name], limit)
	})
	wrong := results[porcupine.Illegal]
	for _, name := range wrong {
		fmt.Printf("not linearizable: %s\n", name)
	}
	fmt.Printf("porcupine: %d histories of keys: %d linearizable, %d undecided, %d not linearizable\n", len(keys),
		len(results[porcupine.Ok]), len(results[porcupine.Unknown]), len(wrong))
	all := windows(transactions)
	results = checkAll(len(all), func(place int) (string, porcupine.CheckResult) {
		return all[place].name, all[place].check()
	})
	skewed := results[porcupine.Illegal]
	for _, name := range skewed {
		fmt.Printf("not strictly serializable: %s\n", name)
	}
	largest := 0
	for _, w := range all {
		largest = max(largest, len(w.operations()))
	}
	fmt.Printf("porcupine: %d transactions in %d windows of at most %d: %d strictly serializable, %d undecided, %d not\n",
		len(transactions), len(all), largest, len(results[porcupine.Ok]), len(results[porcupine.Unknown]), len(skewed))
	if len(wrong)+len(skewed) > 0 {
		fmt.Fprintf(os.Stderr, "error: %d histories are not linearizable, %d windows not strictly serializable\n",
			len(wrong), len(skewed))
		os.Exit(1)
	}
}
