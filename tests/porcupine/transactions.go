// Transactions over several keys: the model, and the lines of the file.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Most keys of a window.
const keysMax = 8

// What a step does to its key.
type what struct {
	Read   *struct{ Saw *[]uint64 }
	Set    *struct{ Token uint64 }
	Append *struct {
		Token  uint64
		Length *uint64
	}
	Delete *struct{ Found *bool }
}

func (w what) isRead() bool { return w.Read != nil }

// The token that it writes; 0: none.
func (w what) token() uint64 {
	switch {
	case w.Set != nil:
		return w.Set.Token
	case w.Append != nil:
		return w.Append.Token
	}
	return 0
}

type keyStep struct {
	Key  string
	What what
}

// A line with a transaction.
type transaction struct {
	Transaction []keyStep
	Client      int
	Invoked     int64
	Returned    uint64
	Ended       string
	// For a time of its own, where it has no end.
	number int
}

func (t *transaction) isUnknown() bool { return t.Ended == "Unknown" }

func (t *transaction) deletes() bool {
	return slices.ContainsFunc(t.Transaction, func(s keyStep) bool { return s.What.Delete != nil })
}

// What is known of an object: its tokens, each with a comma behind it; or, where it is open, the last of them.
type object struct {
	open   bool
	tokens string
}

// The objects of a window.
type objects [keysMax]object

func text(tokens []uint64) string {
	var all strings.Builder
	for _, token := range tokens {
		fmt.Fprintf(&all, "%d,", token)
	}
	return all.String()
}

// Whether a step gives what it says, and the object after it.
func (o object) after(w what) (bool, object) {
	switch {
	case w.Read != nil && w.Read.Saw == nil:
		return true, o
	case w.Read != nil:
		saw := text(*w.Read.Saw)
		if o.open {
			whole := saw == o.tokens || strings.HasSuffix(saw, ","+o.tokens) || o.tokens == ""
			return whole, object{tokens: saw}
		}
		return saw == o.tokens, o
	case w.Set != nil:
		return true, object{tokens: text([]uint64{w.Set.Token})}
	case w.Append != nil:
		o.tokens += text([]uint64{w.Append.Token})
		length := w.Append.Length
		count := uint64(strings.Count(o.tokens, ","))
		fits := length == nil || *length == count || o.open && *length > count
		return fits, o
	case w.Delete != nil:
		found := w.Delete.Found
		isThere := o.tokens != ""
		fits := found == nil || *found == isThere || o.open && *found
		return fits, object{}
	}
	return false, o
}

// A transaction, as far as it is about the keys of a window.
type part struct {
	keys []int
	what []what
}

func stepTransaction(before, input, output any) (bool, any) {
	after, p := before.(objects), input.(*part)
	for i, key := range p.keys {
		fits, next := after[key].after(p.what[i])
		if !fits {
			// One of unknown outcome whose conditions do not hold changes nothing.
			return output.(string) == "Unknown", before
		}
		after[key] = next
	}
	return true, after
}

func transactionModel(open bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any {
			var all objects
			for i := range all {
				all[i].open = open
			}
			return all
		},
		Step: stepTransaction,
	}
}

// The operations of a window, whose keys have these places.
func operations(all []*transaction, places map[string]int) []porcupine.Operation {
	var found []porcupine.Operation
	for _, t := range all {
		p := &part{}
		onlyReads := true
		for _, step := range t.Transaction {
			if place, ok := places[step.Key]; ok {
				p.keys = append(p.keys, place)
				p.what = append(p.what, step.What)
				onlyReads = onlyReads && step.What.isRead()
			}
		}
		if len(p.keys) == 0 || onlyReads && t.isUnknown() {
			continue
		}
		end := int64(math.MaxInt64/2) + int64(t.number)
		if !t.isUnknown() {
			end = int64(t.Returned)
		}
		found = append(found, porcupine.Operation{
			ClientId: t.Client, Input: p, Call: t.Invoked, Output: t.Ended, Return: end,
		})
	}
	return found
}

// A transaction, if the line has one that may have been done.
func readTransaction(line []byte, number int) (*transaction, error) {
	t := &transaction{number: number}
	if err := json.Unmarshal(line, t); err != nil {
		return nil, err
	}
	if t.Ended == "NotDone" || len(t.Transaction) == 0 {
		return nil, nil
	}
	return t, nil
}
