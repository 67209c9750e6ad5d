//! The client's side of one session, without socket, clock or task.

use super::inbox::Delivered;
use super::opening::{self, Cookie, Hello, Keys, Terms, Welcome};
use super::outbox::Message;
use super::packet::{self, DATAGRAM_VERSION, Head, Kind, MessageKind, Strange};
use super::session::{End, Fault, Ignored, Limits, Session, Setup, Trouble};
use super::siphash::{Secret, siphash};
use core::time::Duration;
use pluvio_env::{Frame, Moment};

/// Pause before a hello is repeated the first time. Each next pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest of these pauses. The handshake takes two answered hellos. Where a fifth of all datagrams
/// is lost both ways, it must not fail within the time that a session has to open.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// What the peer answered to a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Reply(Frame),
    /// The reply has this many bytes, more than this side takes.
    TooLarge(usize),
}

/// Why there is no session any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Over {
    #[error("it refused: {0}")]
    Refused(String),
    #[error("no answer within {0:?}; is it a Pluvio datagram port?")]
    NoAnswer(Duration),
    #[error("{0}")]
    Ended(#[from] End),
}

/// The reason why a datagram was not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Odd {
    Strange(Strange),
    Ignored(Ignored),
    /// Of another session, or of another time.
    Unknown,
    Over(Over),
}

struct Opening {
    hello: Hello,
    begun_at: Moment,
    next_at: Moment,
    pause: Duration,
}

/// A session from its first hello to its end.
pub(crate) struct Caller {
    /// This side's id of the session.
    id: u64,
    terms: Terms,
    limits: Limits,
    /// Until the welcome has come.
    opening: Option<Opening>,
    session: Option<Session>,
    whole: Vec<Delivered>,
}

impl Caller {
    pub(crate) fn new(now: Moment, secret: &mut Secret, terms: Terms, limits: Limits) -> Self {
        let id = secret.draw();
        let hello = Hello {
            session: id,
            oldest: DATAGRAM_VERSION,
            newest: DATAGRAM_VERSION,
            terms,
            key_half: secret.draw(),
            cookie: Cookie::default(),
        };
        Self {
            id,
            terms,
            limits,
            opening: Some(Opening {
                hello,
                begun_at: now,
                next_at: now,
                pause: FIRST_PAUSE,
            }),
            session: None,
            whole: Vec::new(),
        }
    }

    /// The open session.
    pub(crate) fn session(&mut self) -> Option<&mut Session> {
        self.session.as_mut()
    }

    /// The largest meta and payload that both sides take.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        let ours = self.terms.frame_bytes_max as usize;
        let theirs = self.session.as_ref().map(Session::frame_bytes_max);
        theirs.map_or(ours, |theirs| theirs.min(ours))
    }

    /// Whether a call would be begun at once.
    pub(crate) fn has_room(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|open| open.waiting() == 0)
    }

    /// Begins a call on the open session.
    ///
    /// # Errors
    /// The request is larger than the peer takes, which is given.
    pub(crate) fn call(&mut self, call: u64, frame: Frame) -> Result<(), usize> {
        let most = self.frame_bytes_max();
        if frame.len() > most {
            return Err(most);
        }
        let session = self.session.as_mut();
        let session = session.expect("calls wait until it is open");
        session.push(Message {
            kind: MessageKind::Request,
            call,
            frame,
        });
        Ok(())
    }

    /// Takes a datagram. Answers go to `answers`.
    pub(crate) fn receive(
        &mut self,
        now: Moment,
        datagram: &[u8],
        answers: &mut Vec<(u64, Answer)>,
    ) -> Result<(), Odd> {
        let (head, body) = match packet::open(datagram) {
            Ok(opened) => opened,
            Err(Strange::OtherVersion {
                refusal: Some(id), ..
            }) if id == self.id && self.opening.is_some() => {
                let text = opening::decode_refusal(&datagram[packet::HEAD_BYTES..]);
                return Err(Odd::Over(Over::Refused(text.unwrap_or_default())));
            }
            Err(strange) => return Err(Odd::Strange(strange)),
        };
        match head.kind {
            Kind::Data if head.session == self.id => {
                self.receive_data(now, &head, datagram, body, answers)
            }
            Kind::Reset => {
                let knows = |session: &Session| session.knows(head.number, head.tag);
                match self.session.as_ref().is_some_and(knows) {
                    true => Err(Odd::Over(End::Reset.into())),
                    false => Err(Odd::Unknown),
                }
            }
            Kind::Cookie | Kind::Welcome | Kind::Refused if head.session == self.id => {
                self.open(now, &head, datagram, body)
            }
            Kind::Data | Kind::Cookie | Kind::Welcome | Kind::Refused | Kind::Hello => {
                Err(Odd::Unknown)
            }
        }
    }

    fn receive_data(
        &mut self,
        now: Moment,
        head: &Head,
        datagram: &[u8],
        body: &[u8],
        answers: &mut Vec<(u64, Answer)>,
    ) -> Result<(), Odd> {
        // Data that overtook the welcome is sent again.
        let session = self.session.as_mut().ok_or(Odd::Unknown)?;
        let taken = session.receive(now, head, datagram, body, &mut |_| true, &mut self.whole);
        for message in self.whole.drain(..) {
            session.release(message.frame.len());
            let answer = match message.head.kind {
                MessageKind::Reply => Answer::Reply(message.frame),
                MessageKind::ReplyTooLarge => {
                    let size = message.frame.payload[..].try_into().map(u64::from_le_bytes);
                    Answer::TooLarge(size.map_or(usize::MAX, |size| size as usize))
                }
                MessageKind::Request => {
                    return Err(Odd::Over(End::Fault(Fault::WrongWay).into()));
                }
            };
            answers.push((message.head.call, answer));
        }
        taken.map_err(|trouble| match trouble {
            Trouble::Ignored(ignored) => Odd::Ignored(ignored),
            Trouble::End(end) => Odd::Over(end.into()),
        })
    }

    /// Takes an answer to the hello.
    fn open(&mut self, now: Moment, head: &Head, datagram: &[u8], body: &[u8]) -> Result<(), Odd> {
        let opening = self.opening.as_mut().ok_or(Odd::Unknown)?;
        match head.kind {
            Kind::Cookie => {
                let cookie = opening::decode_cookie(body).ok_or(Odd::Strange(Strange::Garbage))?;
                if opening.hello.cookie != cookie {
                    opening.hello.cookie = cookie;
                    opening.next_at = now;
                }
                Ok(())
            }
            Kind::Refused => {
                let text = opening::decode_refusal(body).unwrap_or_default();
                Err(Odd::Over(Over::Refused(text)))
            }
            Kind::Welcome => {
                let welcome = Welcome::decode(body).ok_or(Odd::Strange(Strange::Garbage))?;
                let keys = Keys::new(opening.hello.key_half, welcome.key_half);
                if siphash(keys.to_client, packet::tagged(datagram)) != head.tag {
                    return Err(Odd::Ignored(Ignored::Forged));
                }
                let setup = Setup {
                    peer_session: welcome.session,
                    key_out: keys.to_server,
                    key_in: keys.to_client,
                    ours: self.terms,
                    theirs: welcome.terms,
                    limits: self.limits,
                };
                self.session = Some(Session::new(now, &setup));
                self.opening = None;
                Ok(())
            }
            Kind::Hello | Kind::Data | Kind::Reset => Err(Odd::Unknown),
        }
    }

    /// Writes the next datagram, if one is to be sent now.
    pub(crate) fn transmit(&mut self, now: Moment, into: &mut Vec<u8>) -> bool {
        if let Some(session) = &mut self.session {
            return session.transmit(now, into);
        }
        let Some(opening) = self
            .opening
            .as_mut()
            .filter(|opening| opening.next_at <= now)
        else {
            return false;
        };
        opening.hello.encode(into);
        opening.next_at = now + opening.pause;
        opening.pause = (2 * opening.pause).min(LONGEST_PAUSE);
        true
    }

    /// When [`Self::alarm`] has something to do, at the latest.
    pub(crate) fn deadline(&self) -> Moment {
        match (&self.session, &self.opening) {
            (Some(session), _) => session.deadline(),
            (None, Some(opening)) => opening.next_at.min(opening.begun_at + self.limits.opening),
            (None, None) => unreachable!("a session is opened, then open"),
        }
    }

    /// Time has passed.
    ///
    /// # Errors
    /// There is no session any more, or none comes.
    pub(crate) fn alarm(&mut self, now: Moment) -> Result<(), Over> {
        if let Some(session) = &mut self.session {
            return Ok(session.alarm(now)?);
        }
        let limit = self.limits.opening;
        match &self.opening {
            Some(opening) if opening.begun_at + limit <= now => Err(Over::NoAnswer(limit)),
            Some(_) | None => Ok(()),
        }
    }
}
