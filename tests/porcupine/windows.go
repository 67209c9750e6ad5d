// Windows: parts of a history that are small enough to be searched, and closed.
//
// A transaction that is projected to some keys is still a transaction: where all of them are strictly serializable, so
// are the projections. So a window has some keys, and everything that was done to them. Keys that meet in many
// transactions share a window. One more window stands for each two windows that meet, with the two keys that meet most.
// Only where one key has too many operations its history is cut in time, at moments at which nothing is under way; then
// nobody knows what the window begins with.
package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Most operations of a window, where that is possible.
const windowMax = 200

// A part of a history.
type window struct {
	name string
	open bool
	// Those that were done, as far as somebody knows; these and deletes that may have been; all.
	stages [3][]porcupine.Operation
}

func (w window) operations() []porcupine.Operation { return w.stages[len(w.stages)-1] }

// Searches an order for the operations of a window. Mostly there is one without those that nobody knows of, and is found
// sooner.
func (w window) check() porcupine.CheckResult {
	m := transactionModel(w.open)
	result := porcupine.Ok
	for i, stage := range w.stages {
		if i > 0 && len(stage) == len(w.stages[i-1]) {
			continue
		}
		if result = porcupine.CheckOperationsTimeout(m, stage, limit); result == porcupine.Ok {
			break
		}
	}
	return result
}

// Transactions of unknown outcome were done if another one saw a token of theirs, before that one had ended.
func settle(all []*transaction) {
	seen := map[uint64]uint64{}
	for _, t := range all {
		for _, step := range t.Transaction {
			if t.Ended != "Done" || step.What.Read == nil || step.What.Read.Saw == nil {
				continue
			}
			for _, token := range *step.What.Read.Saw {
				if end, ok := seen[token]; !ok || t.Returned < end {
					seen[token] = t.Returned
				}
			}
		}
	}
	for _, t := range all {
		if !t.isUnknown() {
			continue
		}
		for _, step := range t.Transaction {
			if end, ok := seen[step.What.token()]; ok {
				t.Ended, t.Returned = "Done", min(t.Returned, end)
			}
		}
	}
}

// Keys that share a window, with the numbers of their transactions, ascending.
type set struct {
	keys   []string
	places []int
}

func union(a, b []int) []int {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

type pair struct{ one, other string }

// The keys in their order, the transactions of each, and how often two of them meet.
func meetings(all []*transaction) ([]string, map[string][]int, map[pair]int) {
	of, met := map[string][]int{}, map[pair]int{}
	var names []string
	for number, t := range all {
		var keys []string
		for _, step := range t.Transaction {
			keys = append(keys, step.Key)
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		for i, key := range keys {
			if of[key] == nil {
				names = append(names, key)
			}
			of[key] = append(of[key], number)
			for _, other := range keys[i+1:] {
				met[pair{key, other}]++
			}
		}
	}
	slices.Sort(names)
	return names, of, met
}

// Pairs of keys that meet, the ones that meet most first.
func byMeetings(met map[pair]int) []pair {
	var pairs []pair
	for p := range met {
		pairs = append(pairs, p)
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(met[b], met[a]), cmp.Compare(a.one, b.one), cmp.Compare(a.other, b.other))
	})
	return pairs
}

// The windows of a history.
func windows(all []*transaction) []window {
	settle(all)
	names, of, met := meetings(all)
	sets := map[string]*set{}
	for _, name := range names {
		sets[name] = &set{keys: []string{name}, places: of[name]}
	}
	pairs := byMeetings(met)
	for _, p := range pairs {
		a, b := sets[p.one], sets[p.other]
		if a == b || len(a.keys)+len(b.keys) > keysMax {
			continue
		}
		places := union(a.places, b.places)
		if len(places) > windowMax {
			continue
		}
		joined := &set{keys: slices.Concat(a.keys, b.keys), places: places}
		for _, key := range joined.keys {
			sets[key] = joined
		}
	}
	var found []window
	done := map[*set]bool{}
	for _, name := range names {
		if s := sets[name]; !done[s] {
			done[s] = true
			found = append(found, s.windows(all)...)
		}
	}
	bridged := map[[2]*set]bool{}
	for _, p := range pairs {
		a, b := sets[p.one], sets[p.other]
		places := union(of[p.one], of[p.other])
		if a != b && !bridged[[2]*set{a, b}] && len(places) <= windowMax {
			bridged[[2]*set{a, b}], bridged[[2]*set{b, a}] = true, true
			both := &set{keys: []string{p.one, p.other}, places: places}
			found = append(found, both.windows(all)...)
		}
	}
	return found
}

// The windows of a set: one, or several where it has too many operations.
func (s *set) windows(all []*transaction) []window {
	places := map[string]int{}
	for i, key := range s.keys {
		places[key] = i
	}
	mine := make([]*transaction, len(s.places))
	for i, place := range s.places {
		mine[i] = all[place]
	}
	slices.SortStableFunc(mine, func(a, b *transaction) int { return cmp.Compare(a.Invoked, b.Invoked) })
	slices.Sort(s.keys)
	name := strings.Join(s.keys, " ")
	var found []window
	for i, part := range cut(mine) {
		sure := slices.DeleteFunc(slices.Clone(part), (*transaction).isUnknown)
		likely := slices.DeleteFunc(slices.Clone(part), func(t *transaction) bool { return t.isUnknown() && !t.deletes() })
		found = append(found, window{name: name, open: i > 0, stages: [3][]porcupine.Operation{
			operations(sure, places), operations(likely, places), operations(part, places),
		}})
	}
	return found
}

// Cuts a history, in the order of beginnings, where nothing is under way, into parts of up to windowMax. Each begins with
// the last ones of the part before, so that it knows the state behind those. Transactions of unknown outcome are in all
// later parts, too.
func cut(all []*transaction) [][]*transaction {
	if len(all) <= windowMax {
		return [][]*transaction{all}
	}
	// Places at which nothing is under way.
	var calm []int
	end := uint64(0)
	for i, t := range all {
		if i > 0 && end < uint64(t.Invoked) {
			calm = append(calm, i)
		}
		if !t.isUnknown() {
			end = max(end, t.Returned)
		}
	}
	var parts [][]*transaction
	begin := 0
	part := func(end int) {
		unknown := slices.Clone(all[:begin])
		unknown = slices.DeleteFunc(unknown, func(t *transaction) bool { return !t.isUnknown() })
		parts = append(parts, slices.Concat(unknown, all[begin:end]))
	}
	// The last calm place of these; 0: there is none.
	last := func(least, most int) int {
		at, _ := slices.BinarySearch(calm, most+1)
		if at > 0 && calm[at-1] >= least {
			return calm[at-1]
		}
		return 0
	}
	for len(all)-begin > windowMax {
		end := last(begin+1, begin+windowMax)
		if end == 0 {
			at, _ := slices.BinarySearch(calm, begin+1)
			if at == len(calm) {
				break
			}
			end = calm[at]
		}
		part(end)
		if begin = last(begin+1, end-windowMax/4); begin == 0 {
			begin = end
		}
	}
	part(len(all))
	return parts
}
