//! A disk whose writes do not end.

use crate::support::{CORE, FilesThrough, Image, Node};
use bytes::Bytes;
use pluvio_env::{BoxFuture, DiskError, File};
use pluvio_format::SegmentKind::Head;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// It hangs in writes while that is said.
struct HangingFile {
    file: Arc<dyn File>,
    hangs: Arc<AtomicBool>,
}

impl File for HangingFile {
    fn read_at(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DiskError>> {
        self.file.read_at(offset, length)
    }

    fn write_at(&self, offset: u64, data: Bytes) -> BoxFuture<'_, Result<(), DiskError>> {
        self.file.write_at(offset, data)
    }

    fn write_both_at(
        &self,
        offset: u64,
        first: Bytes,
        second: Bytes,
    ) -> BoxFuture<'_, Result<(), DiskError>> {
        if self.hangs.load(Ordering::Relaxed) {
            return Box::pin(core::future::pending());
        }
        self.file.write_both_at(offset, first, second)
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), DiskError>> {
        self.file.sync()
    }

    fn size(&self) -> BoxFuture<'_, Result<u64, DiskError>> {
        self.file.size()
    }
}

// shows: BACKUP-13
#[test]
fn a_backup_whose_write_hangs_says_so_and_one_that_waits_does_not() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-hangs"]);
    let mut node = Node::new(1);
    let hangs = Arc::new(AtomicBool::new(false));
    let said = Arc::clone(&hangs);
    node.env.disk = Arc::new(FilesThrough {
        disk: Arc::clone(&node.env.disk),
        pass: move |file| -> Arc<dyn File> {
            let hangs = Arc::clone(&said);
            Arc::new(HangingFile { file, hangs })
        },
    });
    let backup = node.start();
    let image = Image::new(2, Head, 10);
    for group in 0..5 {
        node.write(&backup, image.request(2, Head, group, group + 1))
            .expect("is written");
    }
    let said = Arc::new(std::sync::Mutex::new(None));
    let (watched, saying) = (backup.clone(), Arc::clone(&said));
    node.sim.spawn(node.process, "watch", async move {
        let why = watched.unusable().await;
        *saying.lock().expect("is not poisoned") = Some(why);
    });
    node.sim.run_for(Duration::from_secs(60));
    assert_eq!(*said.lock().expect("is not poisoned"), None);
    hangs.store(true, Ordering::Relaxed);
    let (writer, request) = (backup, image.request(2, Head, 5, 6));
    node.sim.spawn(node.process, "writer", async move {
        drop(writer.write_replica(CORE, request).await);
    });
    node.sim.run_for(Duration::from_secs(15));
    assert_eq!(*said.lock().expect("is not poisoned"), None);
    node.sim.run_for(Duration::from_secs(10));
    let why = said.lock().expect("is not poisoned").take();
    let why = why.expect("it is told");
    assert!(why.contains("its disk hangs: a write to frames/"), "{why}");
}
