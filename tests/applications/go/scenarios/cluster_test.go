// Package scenarios does with go-redis's cluster client what its users do. The client's own tests
// of clusters start six nodes of redis-server themselves.
package scenarios

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// seed is the first server's port for cluster clients.
const seed = "127.0.0.1:7001"

var ctx = context.Background()

func open(t *testing.T, options *redis.ClusterOptions) *redis.ClusterClient {
	options.Addrs = []string{seed}
	client := redis.NewClusterClient(options)
	t.Cleanup(func() { client.Close() })
	empty := func(ctx context.Context, node *redis.Client) error { return node.FlushDB(ctx).Err() }
	must(t, client.ForEachMaster(ctx, empty))
	return client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, is, wanted T) {
	t.Helper()
	if is != wanted {
		t.Fatalf("it is %v, not %v", is, wanted)
	}
}

// nodes gives the addresses of all owners of slots.
func nodes(t *testing.T, client *redis.ClusterClient) []string {
	slots, err := client.ClusterSlots(ctx).Result()
	must(t, err)
	var found []string
	for _, slot := range slots {
		found = append(found, slot.Nodes[0].Addr)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func TestEachKeyIsFoundAtItsOwner(t *testing.T) {
	client := open(t, &redis.ClusterOptions{})
	for n := range 1000 {
		must(t, client.Set(ctx, fmt.Sprint("k", n), n, time.Minute).Err())
	}
	for n := range 1000 {
		value, err := client.Get(ctx, fmt.Sprint("k", n)).Int()
		must(t, err)
		equal(t, value, n)
	}
	_, err := client.Get(ctx, "absent").Result()
	equal(t, errors.Is(err, redis.Nil), true)
	size, err := client.DBSize(ctx).Result()
	must(t, err)
	// Each server tells of all keys.
	equal(t, size%1000, 0)
}

func TestAPipelineGoesToAllOwners(t *testing.T) {
	client := open(t, &redis.ClusterOptions{})
	replies, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for n := range 5000 {
			pipe.Set(ctx, fmt.Sprint("p", n), n, 0)
			pipe.Incr(ctx, fmt.Sprint("p", n))
		}
		return nil
	})
	must(t, err)
	for at, reply := range replies {
		if at%2 == 1 {
			equal(t, reply.(*redis.IntCmd).Val(), int64(at/2+1))
		}
	}
}

func TestATransactionIsWholeWithinASlot(t *testing.T) {
	client := open(t, &redis.ClusterOptions{})
	replies, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "{u}a", 1, 0)
		pipe.Incr(ctx, "{u}a")
		pipe.MGet(ctx, "{u}a", "{u}b")
		return nil
	})
	must(t, err)
	values := replies[2].(*redis.SliceCmd).Val()
	equal(t, values[0].(string), "2")
	equal(t, values[1] == nil, true)
}

// Optimistic locks of many goroutines on a counter: no change is lost.
func TestWatchedCountersLoseNothing(t *testing.T) {
	client := open(t, &redis.ClusterOptions{})
	const goroutines, steps = 8, 50
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for done := 0; done < steps; {
				err := client.Watch(ctx, func(tx *redis.Tx) error {
					value, err := tx.Get(ctx, "counter").Int()
					if err != nil && !errors.Is(err, redis.Nil) {
						return err
					}
					_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
						pipe.Set(ctx, "counter", value+1, 0)
						return nil
					})
					return err
				}, "counter")
				if err == nil {
					done++
				} else if !errors.Is(err, redis.TxFailedErr) {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	value, err := client.Get(ctx, "counter").Int()
	must(t, err)
	equal(t, value, goroutines*steps)
}

func TestScriptsAndFunctionsRunAtTheOwner(t *testing.T) {
	client := open(t, &redis.ClusterOptions{})
	change := redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then
		redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0`)
	library := "#!lua name=mine\nredis.register_function('twice', " +
		"function(keys) return redis.call('GET', keys[1]) * 2 end)"
	must(t, client.FunctionLoadReplace(ctx, library).Err())
	for n := range 100 {
		key := fmt.Sprint("s", n)
		must(t, client.Set(ctx, key, n, 0).Err())
		changed, err := change.Run(ctx, client, []string{key}, n, n+1).Int()
		must(t, err)
		equal(t, changed, 1)
		twice, err := client.FCall(ctx, "twice", []string{key}).Int()
		must(t, err)
		equal(t, twice, 2*(n+1))
	}
	must(t, client.FunctionDelete(ctx, "mine").Err())
}

func TestAScanOfAllOwnersFindsEveryKey(t *testing.T) {
	client := open(t, &redis.ClusterOptions{})
	for n := range 1000 {
		must(t, client.Set(ctx, fmt.Sprint("user:", n), n, 0).Err())
	}
	var found sync.Map
	must(t, client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		keys := node.Scan(ctx, 0, "user:*", 100).Iterator()
		for keys.Next(ctx) {
			found.Store(keys.Val(), true)
		}
		return keys.Err()
	}))
	count := 0
	found.Range(func(any, any) bool { count++; return true })
	equal(t, count, 1000)
}

func TestKeysOfSeveralSlotsAreRefused(t *testing.T) {
	client := open(t, &redis.ClusterOptions{})
	err := client.Do(ctx, "MGET", "a", "b").Err()
	if err == nil {
		t.Fatal("it is not refused")
	}
}

func TestReadsMayGoToAnyNode(t *testing.T) {
	client := open(t, &redis.ClusterOptions{RouteRandomly: true})
	for n := range 200 {
		must(t, client.Set(ctx, fmt.Sprint("r", n), n, 0).Err())
		value, err := client.Get(ctx, fmt.Sprint("r", n)).Int()
		must(t, err)
		equal(t, value, n)
	}
}

// Four goroutines write while each server is killed in turn. What was acknowledged is there at the
// end. The client repeats commands by itself.
func TestWritersSeeADelayWhenServersDie(t *testing.T) {
	client := open(t, &redis.ClusterOptions{})
	all := nodes(t, client)
	kill := os.Getenv("PLUVIO_KILL")
	if len(all) == 1 || kill == "" {
		t.Skip("it needs several servers of ours")
	}
	const writers, steps = 4, 200
	var done [writers]atomic.Int64
	var longest atomic.Int64
	var failed atomic.Value
	var writing sync.WaitGroup
	stop := make(chan struct{})
	for writer := range writers {
		writing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				step := done[writer].Load()
				began := time.Now()
				err := client.Set(ctx, fmt.Sprintf("w%d:%d", writer, step), step, 0).Err()
				if err != nil {
					failed.CompareAndSwap(nil, err)
					return
				}
				took := time.Since(began).Milliseconds()
				for seen := longest.Load(); seen < took && !longest.CompareAndSwap(seen, took); {
					seen = longest.Load()
				}
				done[writer].Add(1)
			}
		})
	}
	more := func() {
		for writer := range writers {
			for until := done[writer].Load() + steps; done[writer].Load() < until; {
				if err := failed.Load(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	for _, address := range all {
		longest.Store(0)
		more()
		_, port, err := net.SplitHostPort(address)
		must(t, err)
		if err := exec.Command(kill, port).Run(); err != nil {
			t.Skip("the server is not ours")
		}
		more()
		for !answers(address) {
			time.Sleep(10 * time.Millisecond)
		}
		more()
		t.Logf("the longest write while %s died: %d ms", address, longest.Load())
	}
	close(stop)
	writing.Wait()
	for writer := range writers {
		for step := range done[writer].Load() {
			value, err := client.Get(ctx, fmt.Sprintf("w%d:%d", writer, step)).Result()
			must(t, err)
			equal(t, value, strconv.FormatInt(step, 10))
		}
	}
}

func answers(address string) bool {
	client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1})
	defer client.Close()
	return client.Ping(ctx).Err() == nil
}
