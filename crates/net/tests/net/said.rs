//! The words of traces about strangers.

use crate::rig::{Rig, echo, raw, read_to_end};
use core::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the fields of all events of this process, written as the traces of `pluvio` are.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<String>>);

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _infallible = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Said {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        event.record(&mut Fields(&mut said));
        said.push('\n');
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn the_bytes_of_a_stranger_are_escaped_once() {
    let said = Said::default();
    // Event loops are threads of their own. Other tests of this process have nothing to say here.
    tracing::subscriber::set_global_default(said.clone()).unwrap();
    let rig = Rig::new(1);
    let listening = rig.listen(echo());
    let mut stream = raw(&listening.address);
    stream.write_all(b"GET /\"it\" HTTP/1.1\r\n\r\n").unwrap();
    // It is answered after the trace is written.
    read_to_end(&mut stream);
    let said = said.0.lock().unwrap().clone();
    let shown =
        r#"why=does not speak Pluvio's RPC protocol (it began with "GET /\"it\" HTTP/1.1\r\n"#;
    assert!(said.contains(shown), "{said}");
}
