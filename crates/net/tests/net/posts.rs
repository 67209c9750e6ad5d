//! Requests whose outcomes go to an object, over real loopback connections.

use crate::rig::{Rig, Serve, collector, echo, frame};
use pluvio_env::{Address, CallError, Frame, Handled, Network};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

// shows: NET-4
#[test]
fn requests_are_handled_in_the_order_of_their_posting_and_each_has_one_outcome() {
    let rig = Rig::new(1);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let listening = rig.listen({
        let seen = Arc::clone(&seen);
        Serve(move |_, request: Frame| {
            seen.lock().unwrap().push(request.opcode);
            Handled::Now(request)
        })
    });
    rig.run(|network| async move {
        let (replies, mut outcomes) = collector();
        for n in 0..1_000_u16 {
            let request = frame(n, vec![n as u8; usize::from(n) * 20]);
            let given_back = network.post(&listening.address, request, n.into(), &replies);
            assert_eq!(given_back, None);
        }
        for n in 0..1_000_u16 {
            let (number, outcome) = outcomes.recv().await.unwrap();
            assert_eq!((number, outcome.unwrap().opcode), (n.into(), n));
        }
    });
    assert_eq!(*seen.lock().unwrap(), (0..1_000).collect::<Vec<_>>());
}

#[test]
fn requests_that_cannot_be_sent_end_as_calls_do() {
    let rig = Rig::with(1, |options| options.frame_bytes_max = 1000);
    let listening = rig.listen(echo());
    let to = listening.address.clone();
    rig.run(|network| async move {
        let (replies, mut outcomes) = collector();
        network.post(&to, frame(1, vec![0; 1001]), 1, &replies);
        let (_, outcome) = outcomes.recv().await.unwrap();
        assert!(matches!(outcome, Err(CallError::TooLarge(1001, 1000))));
        drop(listening);
        network.post(&Address::from("127.0.0.1:1"), frame(1, ""), 2, &replies);
        let (number, outcome) = outcomes.recv().await.unwrap();
        let unreachable = matches!(outcome, Err(CallError::Unreachable(..)));
        assert!(number == 2 && unreachable);
    });
}

#[test]
fn a_connection_that_breaks_ends_its_requests_as_lost_and_one_that_was_given_up_has_no_outcome() {
    let rig = Rig::new(1);
    let arrived = Arc::new(Notify::new());
    let listening = rig.listen({
        let arrived = Arc::clone(&arrived);
        Serve(move |_, _| {
            arrived.notify_one();
            Handled::Later(Box::pin(core::future::pending()))
        })
    });
    let to = listening.address.clone();
    rig.run(|network| async move {
        let (replies, mut outcomes) = collector();
        for number in [1, 2] {
            network.post(&to, frame(1, "x"), number, &replies);
            arrived.notified().await;
        }
        network.give_up(&to, 1, &replies);
        drop(listening);
        let (number, outcome) = outcomes.recv().await.unwrap();
        assert!(number == 2 && matches!(outcome, Err(CallError::Lost(_))));
        assert!(outcomes.try_recv().is_err());
    });
    let totals = rig.network.counters().totals();
    assert_eq!((totals.calls_timed_out, totals.calls_lost), (1, 1));
}
