//! A sink in memory, which others can look at, and which can be told to fail.

use pluvio_store::{
    Kept, KeptSegment, LogId, ReadBackError, ReplicaSink, SegmentId, SinkAnswer, SinkError,
    SinkWrite, read_back,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a power cut leaves of a segment.
#[derive(Default, Clone)]
pub struct OnDisk {
    pub bytes: Vec<u8>,
    certified: usize,
    closed: bool,
}

/// A disk that all handles share: one is the store's, another one looks.
#[derive(Default, Clone)]
pub struct Disk(pub Arc<Shared>);

#[derive(Default)]
pub struct Shared {
    pub segments: Mutex<BTreeMap<(LogId, SegmentId), OnDisk>>,
    calls: AtomicU64,
    pub freed: AtomicU64,
    /// Every n-th call fails; 0: none does.
    pub fails_each: AtomicU64,
    /// Every n-th call is put off; 0: none is.
    pub waits_each: AtomicU64,
}

impl Disk {
    fn call(&self) -> Result<bool, SinkError> {
        let call = self.0.calls.fetch_add(1, Ordering::Relaxed);
        let hits = |each: &AtomicU64| {
            let each = each.load(Ordering::Relaxed);
            each > 0 && call.is_multiple_of(each)
        };
        if hits(&self.0.fails_each) {
            return Err(SinkError("out of order".into()));
        }
        Ok(!hits(&self.0.waits_each))
    }

    pub fn kept(&self) -> Vec<KeptSegment> {
        let segments = self.0.segments.lock().unwrap();
        let kept = |segment: &OnDisk| KeptSegment {
            bytes: segment.bytes[..segment.certified].to_vec(),
            closed: segment.closed,
        };
        segments.values().map(kept).collect()
    }

    pub fn read_back(&self) -> Result<Kept, ReadBackError> {
        read_back(&self.kept())
    }

    /// How many there are: the store's, and those that look.
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Value by key of the one table.
    pub fn objects(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let kept = self.read_back().unwrap();
        let pairs = kept.objects.into_iter().map(|o| (o.key, o.value));
        pairs.collect()
    }
}

impl ReplicaSink for Disk {
    fn write(&mut self, write: &SinkWrite<'_>) -> Result<SinkAnswer, SinkError> {
        let called = self.call();
        let mut segments = self.0.segments.lock().unwrap();
        let segment = segments.entry((write.log, write.segment)).or_default();
        if called.is_err() {
            // As the pages of a file whose sync has failed.
            segment.bytes.truncate(segment.certified);
        }
        if !called? {
            return Ok(SinkAnswer::After(Duration::from_micros(100)));
        }
        assert_eq!(segment.bytes.len(), write.offset as usize, "SINK-2");
        assert!(!segment.closed && !write.bytes.is_empty(), "SINK-2");
        segment.bytes.extend_from_slice(write.bytes);
        if write.certified {
            segment.certified = segment.bytes.len();
        }
        Ok(SinkAnswer::Taken)
    }

    fn close(&mut self, log: LogId, segment: SegmentId) -> Result<(), SinkError> {
        self.call()?;
        let mut segments = self.0.segments.lock().unwrap();
        let segment = segments.get_mut(&(log, segment)).unwrap();
        assert!(!segment.closed && segment.certified == segment.bytes.len());
        segment.closed = true;
        Ok(())
    }

    fn free(&mut self, log: LogId, segment: SegmentId) -> Result<(), SinkError> {
        self.call()?;
        let mut segments = self.0.segments.lock().unwrap();
        assert!(segments.remove(&(log, segment)).is_some());
        self.0.freed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
