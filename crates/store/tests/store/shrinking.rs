//! A store that loses most of its objects gives the memory of their index back.

use pluvio_store::{Size, Store};

#[test]
fn the_index_follows_the_number_of_objects_down_and_up() {
    let store = Store::builder()
        .memory(Size::mib(64))
        .cleaner_threads(0)
        .huge_pages(false)
        .build()
        .unwrap();
    let table = store.create_table("t").unwrap();
    let keys = 200_000_u64;
    let mut at_first = 0;
    for round in 0..2_u8 {
        for key in 0..keys {
            table.put(&key.to_le_bytes(), &[round; 16]).unwrap();
        }
        let full = store.stats();
        let cost = full.index_bytes_per_object().unwrap();
        assert!(cost <= 11.0, "{cost} bytes of index for an object");
        let load = full.index_load().unwrap();
        // Counted apart in eight places, each of which looks at the sum once in 256 changes: 0.8
        // and 1 % at most.
        assert!((0.77..=0.81).contains(&load), "load {load}");
        if round == 0 {
            at_first = full.index_bytes;
        }
        assert!(full.index_bytes <= at_first + at_first / 50);
        for key in (0..keys).filter(|key| key % 10 != 3) {
            assert!(table.delete(&key.to_le_bytes()).unwrap());
        }
        let few = store.stats();
        assert_eq!(few.objects, keys / 10);
        assert!(
            few.index_bytes <= full.index_bytes / 10 + (192 << 10),
            "{} bytes of index of {}",
            few.index_bytes,
            full.index_bytes
        );
        for key in 0..keys {
            let found = table.get(&key.to_le_bytes());
            assert_eq!(found.is_some(), key % 10 == 3);
        }
        assert_eq!(table.iter().count() as u64, keys / 10);
    }
}
