//! The embedded library as a program sees it.

use pluvio_store::{
    BuildError, Experiments, Host, HugePages, IncrementError, IndexMemory, Interleaving,
    KeyHashing, LogId, MemoryBinding, Nodes, Pace, RejectRules, ReplicaSink, SegmentId, SinkAnswer,
    SinkError, SinkWrite, Size, Store, StoreBuilder, StoreError, Table, ThisMachine, Topology,
    TopologyError, UpdatePolicy, Version, Worker,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn store() -> Store {
    Store::builder()
        .memory(Size::mib(64))
        .heads(2)
        .build()
        .unwrap()
}

fn table(store: &Store) -> Table {
    store.create_table("test").unwrap()
}

/// Handles go between threads.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Store>();
    shared::<Table>();
};

#[test]
fn objects_come_and_go() {
    for hashing in [KeyHashing::Fast, KeyHashing::Keyed] {
        let builder = Store::builder().memory(Size::mib(64)).hashing(hashing);
        let table = table(&builder.build().unwrap());
        assert_eq!(table.get(b"key"), None);
        let first = table.put(b"key", b"one").unwrap();
        let second = table.put(b"key", b"two").unwrap();
        assert!(first < second);
        let mut value = b"old".to_vec();
        assert!(table.get_into(b"key", &mut value));
        assert_eq!((value.as_slice(), table.len()), (&b"two"[..], 1));
        assert!(table.delete(b"key").unwrap());
        assert!(!table.delete(b"key").unwrap());
        assert!(!table.get_into(b"key", &mut value) && value.is_empty());
        assert!(table.is_empty());
        let again = table.put(b"key", b"three").unwrap();
        assert!(again > second, "versions grow over delete and re-create");
    }
}

#[test]
fn memory_that_was_touched_is_resident_until_it_is_given_back() {
    let store = store();
    let table = table(&store);
    let new = store.stats();
    assert!(new.resident_bytes < Size::mib(32).bytes(), "{new:?}");
    for i in 0..20_000_u32 {
        table.put(&i.to_le_bytes(), &[1; 1000]).unwrap();
    }
    let full = store.stats();
    assert!(full.resident_bytes >= full.log_bytes + full.index_bytes);
    assert!(full.resident_bytes >= new.resident_bytes + 20_000 * 1000);
    for i in 0..20_000_u32 {
        table.delete(&i.to_le_bytes()).unwrap();
    }
    let empty = store.stats();
    assert!(empty.resident_bytes >= empty.log_bytes + empty.index_bytes);
}

#[test]
fn conditions_decide_under_the_lock() {
    let store = store();
    let table = table(&store);
    let refused = |found| Err(StoreError::Condition { found });
    assert_eq!(table.put_if(b"k", b"a", RejectRules::ABSENT), refused(None));
    let first = table.put_if(b"k", b"a", RejectRules::EXISTS).unwrap();
    assert_eq!(
        table.put_if(b"k", b"b", RejectRules::EXISTS),
        refused(Some(first))
    );
    let next = table
        .put_if(b"k", b"b", RejectRules::unless_version(first))
        .unwrap();
    assert_eq!(
        table.put_if(b"k", b"c", RejectRules::unless_version(first)),
        refused(Some(next))
    );
    assert_eq!(table.get(b"k").unwrap(), b"b");
}

#[test]
fn numbers_are_text_and_do_not_wrap() {
    let store = store();
    let table = table(&store);
    assert_eq!(table.increment(b"n", 5), Ok(5));
    assert_eq!(table.increment(b"n", -7), Ok(-2));
    assert_eq!(table.get(b"n").unwrap(), b"-2");
    assert_eq!(
        table.increment(b"n", i64::MIN),
        Err(IncrementError::Overflow { by: i64::MIN })
    );
    table.put(b"word", b"ten").unwrap();
    assert_eq!(table.increment(b"word", 1), Err(IncrementError::NotANumber));
    assert_eq!(table.get(b"word").unwrap(), b"ten");
}

#[test]
fn what_is_borrowed_stays_as_it_was() {
    let store = store();
    let table = table(&store);
    let large = vec![7; 1 << 20];
    table.put(b"small", b"before").unwrap();
    table.put(b"large", &large).unwrap();
    let guard = store.pin();
    let small = table.get_ref(&guard, b"small").unwrap();
    table.put(b"small", b"after").unwrap();
    assert_eq!(&*small, b"before");
    assert!(small.version() >= Version(1));
    assert_eq!(*table.get_ref(&guard, b"large").unwrap(), large[..]);
    assert!(table.get_ref(&guard, b"none").is_none());
}

#[test]
fn batches_do_what_single_calls_do() {
    let store = store();
    let table = table(&store);
    let keys: Vec<Vec<u8>> = (0..100_u32).map(|n| n.to_le_bytes().to_vec()).collect();
    let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|k| (&k[..], &k[..])).collect();
    table.put_batch(&pairs).unwrap();
    table.delete(&keys[50]).unwrap();
    let wanted: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
    let mut seen = Vec::new();
    table.get_batch(&wanted, |at, value| {
        seen.push((at, value.map(<[u8]>::to_vec)))
    });
    let expected: Vec<_> = (0..100)
        .map(|at| (at, (at != 50).then(|| keys[at].clone())))
        .collect();
    assert_eq!(seen, expected);
    let long = vec![0; (64 << 10) + 1];
    let stopped = table.put_batch(&[(b"a", b"1"), (&long, b"2"), (b"c", b"3")]);
    assert!(matches!(stopped, Err((1, StoreError::KeyTooLong(..)))));
    assert!(table.contains(b"a") && !table.contains(b"c"));
}

#[test]
fn a_walk_meets_every_object_once() {
    let store = store();
    let table = table(&store);
    for n in 0..5000_u32 {
        table.put(&n.to_be_bytes(), &[n as u8; 10]).unwrap();
    }
    let mut found: Vec<_> = table.iter().collect();
    found.sort();
    let expected: Vec<_> = (0..5000_u32)
        .map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; 10]))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn tables_are_apart_and_dropping_one_ends_its_handles() {
    let store = store();
    let (one, two) = (table(&store), store.create_table("two").unwrap());
    assert_eq!(
        store.create_table("two").unwrap_err(),
        StoreError::TableExists("two".into())
    );
    one.put(b"k", b"1").unwrap();
    two.put(b"k", b"2").unwrap();
    assert_eq!(store.table_names(), ["test", "two"]);
    assert!(store.drop_table("two") && !store.drop_table("two"));
    let unknown = store.table("two").unwrap_err();
    assert_eq!(unknown, StoreError::UnknownTable("two".into()));
    assert_eq!(unknown.to_string(), "there is no table \"two\"");
    assert_eq!(two.get(b"k"), None);
    let dropped = two.put(b"k", b"3").unwrap_err();
    assert_eq!(dropped, StoreError::TableDropped("two".into()));
    assert_eq!(dropped.to_string(), "the table \"two\" was dropped");
    assert_eq!((one.name(), two.name()), ("test", "two"));
    assert_eq!(two.iter().count(), 0);
    assert_eq!(store.table("test").unwrap().get(b"k").unwrap(), b"1");
    let new = store.create_table("two").unwrap();
    assert_eq!(new.get(b"k"), None);
    assert_eq!(store.stats().objects, 1);
}

#[test]
fn senseless_options_are_named_with_their_limits() {
    let refused = |builder: pluvio_store::StoreBuilder| builder.build().unwrap_err();
    let named = |error: BuildError, option: &str| match &error {
        BuildError::OutOfRange { option: named, .. } => assert_eq!(*named, option, "{error}"),
        other => panic!("{other}"),
    };
    let builder = || Store::builder().memory(Size::mib(64));
    let of_bytes = |bytes| refused(Store::builder().memory(Size(bytes)));
    named(of_bytes(1 << 48), "memory");
    named(of_bytes(u64::MAX), "memory");
    named(refused(builder().heads(0)), "heads");
    named(refused(builder().heads(1000)), "heads");
    named(
        refused(builder().experiments(Experiments {
            expansion: 0.9,
            ..Experiments::default()
        })),
        "expansion",
    );
    named(
        refused(builder().experiments(Experiments {
            expansion: f64::NAN,
            ..Experiments::default()
        })),
        "expansion",
    );
    named(refused(builder().cleaner_threads(65)), "cleaner_threads");
    named(refused(builder().threads_max(0)), "threads_max");
    named(refused(builder().threads_max(1 << 20)), "threads_max");
    let own_threads = || builder().cleaner_threads(3);
    named(refused(own_threads().threads_max(3)), "threads_max");
    assert!(own_threads().threads_max(4).build().is_ok());
    let begins_at = |version| builder().first_version(Version(version));
    named(refused(begins_at(u64::MAX)), "first_version");
    named(refused(begins_at(0)), "first_version");
    let late = table(&begins_at(1 << 63).build().unwrap());
    assert_eq!(late.put(b"k", b"first").unwrap(), Version(1 << 63));
    assert_eq!(late.put(b"k", b"next").unwrap(), Version((1 << 63) + 1));
    named(refused(builder().limits(0, 10)), "limits (key)");
    named(refused(builder().limits(10, 2 << 20)), "limits (value)");
    named(refused(builder().live_percent_max(99)), "live_percent_max");
    named(refused(builder().live_percent_max(0)), "live_percent_max");
    named(
        refused(builder().experiments(Experiments {
            segment_size: Some(Size::mib(1)),
            ..Experiments::default()
        })),
        "segment_size",
    );
    named(
        refused(builder().experiments(Experiments {
            segment_size: Some(Size::mib(9)),
            ..Experiments::default()
        })),
        "segment_size",
    );
    match refused(Store::builder().memory(Size::mib(1))) {
        BuildError::MemoryTooSmall {
            memory, minimum, ..
        } => {
            assert_eq!(memory, 1 << 20);
            assert!(Store::builder().memory(Size(minimum)).build().is_ok());
            assert!(
                Store::builder()
                    .memory(Size(minimum - (64 << 10)))
                    .build()
                    .is_err()
            );
        }
        other => panic!("{other}"),
    }
    match refused(Store::builder().memory(Size::mib(32)).heads(64)) {
        BuildError::TooManyHeads { limit, .. } => {
            let builder = || Store::builder().memory(Size::mib(32));
            assert!(builder().heads(limit).build().is_ok());
            assert!(builder().heads(limit + 1).build().is_err());
        }
        other => panic!("{other}"),
    }
    let unreservable = refused(Store::builder().memory(Size(1 << 47)));
    assert!(
        matches!(unreservable, BuildError::Unreservable(_)),
        "{unreservable}"
    );
    let nodes = Topology::Nodes(vec![vec![0], vec![0]]);
    assert!(matches!(
        refused(builder().experiments(Experiments {
            topology: nodes,
            ..Experiments::default()
        })),
        BuildError::Topology(_)
    ));
}

#[test]
fn refusals_name_option_and_limit() {
    let builder = || Store::builder().memory(Size::mib(64));
    let text = |builder: pluvio_store::StoreBuilder| builder.build().unwrap_err().to_string();
    let limits = [
        (builder().heads(0), "option heads: 0; 1 to 256 are possible"),
        (
            builder().experiments(Experiments {
                expansion: 0.5,
                ..Experiments::default()
            }),
            "option expansion: 0.5; 1 to 100 are possible",
        ),
        (
            builder().threads_max(1),
            "option threads_max: 1; 2 to 65536 are possible",
        ),
        (
            builder().limits(1 << 20, 1),
            "option limits (key): 1048576; 1 to 65536 are possible",
        ),
        (
            builder().limits(1, 1 << 30),
            "option limits (value): 1073741824; 0 to 1048576 are possible",
        ),
        (
            builder().limits(1, 1 << 20).update(UpdatePolicy::InPlace),
            "option limits (value): 1048576; 0 to 1048564 are possible",
        ),
        (
            builder().cleaner_threads(65),
            "option cleaner_threads: 65; 0 to 64 are possible",
        ),
        (
            builder().threads_max(2).sink(Nothing),
            "option threads_max: 2; 3 to 65536 are possible",
        ),
        (
            builder().live_percent_max(99),
            "option live_percent_max: 99; 1 to 98 are possible",
        ),
        (
            builder().experiments(Experiments {
                segment_size: Some(Size::mib(1)),
                ..Experiments::default()
            }),
            "option segment_size: 1048576; 2621440 to 8388608 are possible",
        ),
        (
            builder().update(UpdatePolicy::InPlace).sink(Nothing),
            "option update: InPlace; a store with a sink appends, because the sink keeps what was written",
        ),
        (
            builder().experiments(Experiments {
                topology: Topology::Nodes(vec![vec![0], vec![0]]),
                ..Experiments::default()
            }),
            "option topology: the nodes [[0], [0]] are no division of processors",
        ),
    ];
    for (builder, expected) in limits {
        assert_eq!(text(builder), expected);
    }
    let small = text(Store::builder().memory(Size::mib(1)).heads(2));
    let expected = "option memory: 1048576 bytes; a store with 2 heads needs at least ";
    assert!(small.starts_with(expected), "{small}");
    let crowded = text(Store::builder().memory(Size::mib(32)).heads(256));
    let expected = "option heads: 256; 33554432 bytes of memory allow at most ";
    assert!(crowded.starts_with(expected), "{crowded}");
    let large = text(Store::builder().memory(Size(1 << 47)));
    let expected = "option memory: cannot reserve ";
    assert!(large.starts_with(expected), "{large}");
    assert_eq!(
        text(Store::builder().memory(Size(1 << 48))),
        "option memory: 281474976710656 bytes; at most 281474976645120 are possible"
    );
}

#[test]
fn huge_pages_that_are_required_and_not_there_are_an_error() {
    let machine = |has| Machine {
        has_huge_pages: has,
        ..Machine::default()
    };
    let builder = |has, huge| {
        let builder = Store::builder().memory(Size::mib(64)).cleaner_threads(0);
        builder.host(Arc::new(machine(has))).huge_pages(huge)
    };
    let refused = builder(false, HugePages::Required).build().unwrap_err();
    assert!(matches!(refused, BuildError::NoHugePages(_)));
    assert_eq!(
        refused.to_string(),
        "option huge_pages: required, but this machine has none"
    );
    // What the kernel says counts as well, whatever the machine says.
    let of_kernel = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
    let required = builder(true, HugePages::Required).build();
    assert_eq!(required.is_ok(), of_kernel);
    for (has, huge) in [(false, HugePages::IfPossible), (false, HugePages::No)] {
        let store = builder(has, huge).build().unwrap();
        table(&store).put(b"k", b"v").unwrap();
    }
}

#[test]
fn memory_that_was_fetched_beforehand_is_used_as_any_other() {
    let builder = || Store::builder().memory(Size::mib(64)).cleaner_threads(0);
    let fetched = match builder().populate(true).build() {
        Ok(store) => store,
        // Linux older than 5.14.
        Err(refused) => {
            assert!(refused.to_string().contains("populate"), "{refused}");
            return;
        }
    };
    let other = builder().build().unwrap().stats();
    let resident = fetched.stats().log_resident_bytes;
    assert!(
        resident > 2 * other.log_resident_bytes && resident <= 64 << 20,
        "{resident} of 64 MiB, {} without",
        other.log_resident_bytes
    );
    let towns = table(&fetched);
    towns.put(b"k", &[7; 100_000]).unwrap();
    assert_eq!(towns.get(b"k").unwrap(), [7; 100_000]);
}

/// Two groups of processors, of which the second one may be near a node that is not there.
#[test]
fn memory_is_divided_among_nodes_and_bound_where_it_can_be() {
    let build = |number: u32, bind: bool| {
        let nodes = vec![(0, vec![0, 2]), (number, vec![1, 3])];
        let builder = Store::builder().memory(Size::mib(64)).cleaner_threads(0);
        let builder = builder
            .experiments(Experiments {
                topology: Topology::Numbered(nodes),
                ..Experiments::default()
            })
            .heads(4);
        let machine = Arc::new(Machine::default());
        builder.host(machine).bind_memory(bind).build().unwrap()
    };
    let missing = build(1000, true);
    let stats = missing.stats();
    assert_eq!(stats.memory_nodes, 2);
    let MemoryBinding::Refused(why) = stats.binding else {
        panic!("{stats:?}");
    };
    assert!(why.node == 0 || why.node == 1000, "{why}");
    let unbound = build(0, false).stats();
    assert_eq!(
        (unbound.memory_nodes, unbound.binding),
        (1, MemoryBinding::NoNodes)
    );
    // Where the system binds at all.
    let there = build(0, true);
    if why.node == 1000 {
        assert_eq!(there.stats().binding, MemoryBinding::Bound);
    }
    for store in [missing, there] {
        let table = table(&store);
        for key in 0..10_000_u32 {
            table.put(&key.to_le_bytes(), &[7; 1000]).unwrap();
        }
        assert_eq!(store.stats().away_bytes, 0, "each node has seglets");
        assert_eq!(table.len(), 10_000);
    }
}

#[test]
fn with_a_cleaner_for_each_memory_node_they_stay_near_it() {
    for (cleaners, expected) in [
        (1, vec![vec![]]),
        (2, vec![vec![0, 2], vec![1, 3]]),
        (3, vec![vec![0, 2], vec![1, 3], vec![0, 2]]),
    ] {
        let machine = Arc::new(Machine::default());
        let nodes = vec![(0, vec![0, 2]), (1000, vec![1, 3])];
        let builder = Store::builder().memory(Size::mib(64));
        let builder = builder.experiments(Experiments {
            topology: Topology::Numbered(nodes),
            ..Experiments::default()
        });
        let host: Arc<dyn Host> = machine.clone();
        let store = builder.host(host).cleaner_threads(cleaners).build();
        assert_eq!(store.unwrap().stats().memory_nodes, 2);
        assert_eq!(*machine.near.lock().unwrap(), expected);
    }
}

#[test]
fn each_memory_node_has_a_cleaner_of_its_own_unless_the_program_says_otherwise() {
    let near = |change: fn(StoreBuilder) -> StoreBuilder| {
        let machine = Arc::new(Machine::default());
        let host: Arc<dyn Host> = machine.clone();
        let builder = Store::builder().memory(Size::mib(256)).host(host);
        let store = change(builder).build().unwrap();
        let near = machine.near.lock().unwrap().clone();
        drop(store);
        near
    };
    let one: Vec<Vec<usize>> = vec![vec![]];
    let each = [vec![0, 2], vec![1, 3]];
    assert_eq!(near(|builder| builder), each);
    assert_eq!(near(|builder| builder.cleaner_threads(1)), one);
    assert_eq!(near(|builder| builder.bind_memory(false)), one);
    assert_eq!(near(|builder| builder.heads(1)), one, "its head has a node");
    let one_node = |builder: StoreBuilder| {
        builder.experiments(Experiments {
            topology: Topology::Nodes(vec![vec![0, 1, 2, 3]]),
            ..Experiments::default()
        })
    };
    assert_eq!(near(one_node), one);
    // Where a second one would cost much.
    assert_eq!(near(|builder| builder.memory(Size::mib(64))), one);
    assert_eq!(near(|builder| builder.threads_max(2)), one);
    assert_eq!(near(|builder| builder.threads_max(3)), each);
    assert_eq!(near(|builder| builder.threads_max(3).sink(Nothing)), one);
}

#[test]
fn index_memory_is_interleaved_over_all_nodes_unless_the_program_says_otherwise() {
    let told = |nodes: [u32; 2], change: fn(StoreBuilder) -> StoreBuilder| {
        let nodes = vec![(nodes[0], vec![0, 2]), (nodes[1], vec![1, 3])];
        let builder = Store::builder().memory(Size::mib(64)).cleaner_threads(0);
        let builder = builder.experiments(Experiments {
            topology: Topology::Numbered(nodes),
            ..Experiments::default()
        });
        let store = change(builder).build().unwrap();
        let table = table(&store);
        for key in 0..10_000_u32 {
            table.put(&key.to_le_bytes(), &[7; 1000]).unwrap();
        }
        assert_eq!(table.len(), 10_000);
        store.stats().interleaving
    };
    // Nodes that no machine has: the system was asked, and for these.
    let Interleaving::Refused(why) = told([1022, 1023], |builder| builder) else {
        panic!("no machine has these nodes");
    };
    assert_eq!(why.nodes, 2);
    let shared = told([1022, 1023], |builder| builder.shared(true));
    assert_eq!(shared, Interleaving::Refused(why));
    let bound = told([1022, 1023], |builder| builder.bind_memory(false));
    assert_eq!(bound, Interleaving::Refused(why), "it is another option");
    let first = told([1022, 1023], |builder| {
        builder.index_memory(IndexMemory::FirstTouch)
    });
    assert_eq!(first, Interleaving::FirstTouch);
    // Two groups of processors near one node.
    let one = told([0, 0], |builder| builder);
    assert_eq!(one, Interleaving::FirstTouch);
    // A second node that may be there or not.
    let two = told([0, 1], |builder| builder);
    match two {
        Interleaving::Interleaved => {}
        // A sandbox, or a kernel without nodes: the same answer as above.
        Interleaving::Refused(other) => assert_eq!(other, why),
        Interleaving::FirstTouch => panic!("nobody was asked"),
    }
}

#[test]
fn keys_and_values_beyond_the_limits_are_refused() {
    let store = Store::builder()
        .memory(Size::mib(64))
        .limits(4, 8)
        .build()
        .unwrap();
    let table = table(&store);
    let refused = table.put(b"12345", b"").unwrap_err();
    assert_eq!(refused, StoreError::KeyTooLong(5, 4));
    let text = refused.to_string();
    assert_eq!(
        text,
        "a key of 5 bytes is over the 4 that the option limits takes"
    );
    assert_eq!(
        table.put(b"1", &[0; 9]),
        Err(StoreError::ValueTooLong(9, 8))
    );
    table.put(b"1234", &[0; 8]).unwrap();
    table.put(b"", b"").unwrap();
    assert_eq!(table.get(b"").unwrap(), b"");
}

/// A machine with two nodes of two processors, on which threads are counted and run in turn on each
/// processor.
#[derive(Default)]
struct Machine {
    threads: Arc<AtomicUsize>,
    next_processor: AtomicUsize,
    /// Refuses a thread when so many are there.
    refuses_at: Option<usize>,
    has_huge_pages: bool,
    /// The processors that each thread was to stay on.
    near: Mutex<Vec<Vec<usize>>>,
}

/// Counts one thread for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Host for Machine {
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn random(&self) -> u64 {
        4
    }

    fn nodes(&self) -> Result<Nodes, TopologyError> {
        Nodes::new(vec![vec![0, 2], vec![1, 3]])
    }

    fn huge_pages(&self) -> Result<(), String> {
        if self.has_huge_pages {
            return Ok(());
        }
        Err("this machine has none".into())
    }

    fn processor(&self) -> usize {
        self.next_processor.fetch_add(1, Ordering::Relaxed) % 4
    }

    fn work(
        &self,
        name: String,
        mut step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Result<Worker, std::io::Error> {
        if self.refuses_at == Some(self.threads.load(Ordering::SeqCst)) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        self.threads.fetch_add(1, Ordering::SeqCst);
        let counted = Counted(Arc::clone(&self.threads));
        let step = move || {
            let _counted = &counted;
            step()
        };
        ThisMachine.work(name, Box::new(step))
    }

    fn work_near(
        &self,
        name: String,
        processors: Vec<usize>,
        step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Result<Worker, std::io::Error> {
        self.near.lock().unwrap().push(processors);
        self.work(name, step)
    }
}

// shows: EMBED-2
#[test]
fn the_last_handle_ends_the_threads() {
    let machine = Arc::new(Machine::default());
    let builder = Store::builder()
        .memory(Size::mib(64))
        .cleaner_threads(3)
        .host(Arc::clone(&machine) as Arc<dyn Host>);
    let store = builder.build().unwrap();
    assert_eq!(store.stats().heads, 4, "one for each processor");
    assert_eq!(machine.threads.load(Ordering::SeqCst), 3);
    let table = store.create_table("kept").unwrap();
    drop(store);
    for key in 0..1000_u32 {
        table.put(&key.to_le_bytes(), b"from every head").unwrap();
    }
    assert_eq!(table.len(), 1000);
    assert_eq!(machine.threads.load(Ordering::SeqCst), 3);
    drop(table);
    assert_eq!(machine.threads.load(Ordering::SeqCst), 0);
}

/// Takes everything and keeps nothing.
struct Nothing;

impl ReplicaSink for Nothing {
    fn write(&mut self, _: &SinkWrite<'_>) -> Result<SinkAnswer, SinkError> {
        Ok(SinkAnswer::Taken)
    }

    fn close(&mut self, _: LogId, _: SegmentId) -> Result<(), SinkError> {
        Ok(())
    }

    fn free(&mut self, _: LogId, _: SegmentId) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Two cleaner threads, then that of the sink.
#[test]
fn a_thread_that_the_system_refuses_leaves_none_behind() {
    for (threads, sink) in [(0, false), (1, false), (0, true), (1, true), (2, true)] {
        let machine = Arc::new(Machine {
            refuses_at: Some(threads),
            ..Machine::default()
        });
        let mut builder = Store::builder()
            .memory(Size::mib(64))
            .cleaner_threads(2)
            .host(Arc::clone(&machine) as Arc<dyn Host>);
        if sink {
            builder = builder.sink(Nothing);
        }
        let refused = builder.build().unwrap_err();
        let option = match &refused {
            BuildError::CleanerThread(_) if threads < 2 => "cleaner_threads",
            BuildError::SinkThread(_) if threads == 2 => "sink",
            other => panic!("{other}"),
        };
        let expected = format!("option {option}: the system refused a thread: ");
        assert!(refused.to_string().starts_with(&expected), "{refused}");
        assert_eq!(machine.threads.load(Ordering::SeqCst), 0);
    }
}
