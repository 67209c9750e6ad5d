//! Where a replica goes: randomization with refinement [RAMCloud §7.1].

use core::time::Duration;
use pluvio_env::{Moment, Rng};
use pluvio_units::ServerId;
use pluvio_wire::{ClusterSettings, ServerInfo, ServerList};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Candidates for a primary replica of which the best is taken.
const CANDIDATES: usize = 5;
/// The assumed speed of a backup that was not measured, in MB/s.
const SPEED_UNKNOWN: u32 = 100;

/// How long a backup that was full is given to say whether it still is.
const ANSWER_PAUSE: Duration = Duration::from_secs(1);
/// A backup that has no space is news again when it had some for so long.
const NEWS_PAUSE: Duration = Duration::from_secs(60);

/// How long a backup that was bad gets no new replicas, at first. Each time that it is bad again
/// soon after, this doubles. A disk that fails now and then costs a second or two each time.
const BAD_PAUSE_MIN: Duration = Duration::from_secs(10);
/// The longest: a disk that was repaired is of use again after this time.
const BAD_PAUSE_MAX: Duration = Duration::from_secs(320);

/// What the master knows of the others.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) me: ServerId,
    pub(crate) rack: Option<String>,
    pub(crate) list: Arc<ServerList>,
    pub(crate) settings: ClusterSettings,
}

impl View {
    /// Whether a server may hold replicas that count: the others, or the only one there ever was.
    pub(crate) fn is_usable(&self, server: ServerId) -> bool {
        self.list.is_up(server) && (server != self.me || !self.list.grown)
    }

    /// Whether a server is about to be stopped.
    pub(crate) fn is_drained(&self, server: ServerId) -> bool {
        self.list.get(server).is_some_and(|info| info.draining)
    }

    /// Servers that may hold replicas, new ones too.
    pub(crate) fn usable(&self) -> impl Iterator<Item = &ServerInfo> {
        let in_my_rack = |s: &ServerInfo| s.rack.is_some() && s.rack == self.rack;
        self.list
            .up()
            .filter(|s| s.id != self.me || !self.list.grown)
            .filter(move |s| s.id == self.me || !self.settings.strict_racks || !in_my_rack(s))
    }

    /// Replicas of one segment for which there are places.
    pub(crate) fn places(&self) -> usize {
        let usable = self.usable().count();
        if !self.settings.strict_racks {
            return usable;
        }
        let racks = self.usable().filter_map(|s| s.rack.as_ref());
        let alone = self.usable().filter(|s| s.rack.is_none()).count();
        racks.collect::<BTreeSet<_>>().len() + alone
    }

    /// Replicas wanted. None for a log that keeps none (REP-20).
    pub(crate) fn wanted(&self) -> usize {
        match (self.keeps_none(), self.list.grown) {
            (true, _) => 0,
            (false, true) => self.settings.replicas as usize,
            (false, false) => 1,
        }
    }

    /// Whether this is a view of a log without replicas.
    pub(crate) fn keeps_none(&self) -> bool {
        self.settings.replicas == 0
    }

    /// Replicas needed for an acknowledgement.
    pub(crate) fn needed(&self) -> usize {
        let ClusterSettings {
            replicas,
            min_replicas,
            ..
        } = self.settings;
        match (self.keeps_none(), self.list.grown) {
            (true, _) => 0,
            (false, true) => min_replicas.clamp(1, replicas) as usize,
            (false, false) => 1,
        }
    }
}

/// The places of this master's replicas; shared by its logs.
#[derive(Default)]
pub(crate) struct Placement {
    primaries: BTreeMap<ServerId, u32>,
    full: BTreeMap<ServerId, Moment>,
    /// Backups that failed a replica, or were late (REP-14).
    bad: BTreeMap<ServerId, Bad>,
}

struct Bad {
    until: Moment,
    pause: Duration,
}

impl Placement {
    /// A backup has no space: leave it in peace until `until`.
    pub(crate) fn set_full(&mut self, server: ServerId, until: Moment) {
        self.full.insert(server, until);
    }

    /// Whether it is news that a backup has no space, and not the answer that it gave a moment ago.
    pub(crate) fn is_news(&self, server: ServerId, now: Moment) -> bool {
        let known = self.full.get(&server);
        known.is_none_or(|until| now.since(*until) > NEWS_PAUSE)
    }

    /// Whether a backup is left in peace.
    pub(crate) fn is_full(&self, server: ServerId, now: Moment) -> bool {
        self.full.get(&server).is_some_and(|until| *until > now)
    }

    /// Whether a backup is left in peace, or was until a moment ago: what is asked of it now may be
    /// refused, too.
    pub(crate) fn may_be_full(&self, server: ServerId, now: Moment) -> bool {
        let known = self.full.get(&server);
        known.is_some_and(|until| now.since(*until) < ANSWER_PAUSE)
    }

    /// A backup failed a replica, or was late: no new ones go there for a while, if others will do.
    /// Gives the end of that time.
    pub(crate) fn set_bad(&mut self, server: ServerId, now: Moment) -> Moment {
        let pause = match self.bad.get(&server) {
            // It failed several replicas at once.
            Some(bad) if bad.until > now => return bad.until,
            Some(bad) if now.since(bad.until) < bad.pause => (bad.pause * 2).min(BAD_PAUSE_MAX),
            Some(_) | None => BAD_PAUSE_MIN,
        };
        let until = now + pause;
        self.bad.insert(server, Bad { until, pause });
        until
    }

    /// Whether a backup was bad a short time ago.
    pub(crate) fn is_bad(&self, server: ServerId, now: Moment) -> bool {
        self.bad.get(&server).is_some_and(|bad| bad.until > now)
    }

    /// When the next backup is asked again, if any is left in peace.
    pub(crate) fn next_retry(&self, now: Moment) -> Option<Duration> {
        let full = self.full.values().copied();
        let bad = self.bad.values().map(|bad| bad.until);
        let next = full.chain(bad).filter(|until| *until > now).min();
        next.map(|until| until.since(now))
    }

    /// Backups of `view` that are left in peace.
    pub(crate) fn count_full(&self, view: &View, now: Moment) -> u32 {
        view.usable().filter(|s| self.is_full(s.id, now)).count() as u32
    }

    /// A primary replica was put on `server`, or taken away.
    pub(crate) fn count_primary(&mut self, server: ServerId, more: bool) {
        let count = self.primaries.entry(server).or_default();
        *count = if more {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
        if *count == 0 {
            self.primaries.remove(&server);
        }
    }

    /// Forgets servers that are gone.
    pub(crate) fn keep_listed(&mut self, list: &ServerList) {
        self.full.retain(|id, _| list.is_up(*id));
        self.bad.retain(|id, _| list.is_up(*id));
        self.primaries.retain(|id, _| list.is_up(*id));
    }

    /// Chooses a backup for one more replica of a segment whose replicas are, or were, at `taken`.
    /// Other racks than those of `near` (and the master's) come first. With strict racks only those
    /// are chosen (REP-17). Then, for a primary, the backup comes that could read all of our
    /// primaries first; then chance decides. `None` when there is nobody.
    pub(crate) fn choose(
        &self,
        view: &View,
        taken: &dyn Fn(ServerId) -> bool,
        near: &[ServerId],
        primary: bool,
        now: Moment,
        rng: &dyn Rng,
    ) -> Option<ServerId> {
        let free: Vec<&ServerInfo> = view
            .usable()
            .filter(|s| !taken(s.id) && !self.is_full(s.id, now))
            .collect();
        let racks: Vec<&String> = near
            .iter()
            .filter_map(|id| view.list.get(*id)?.rack.as_ref())
            .chain(view.rack.as_ref())
            .collect();
        let elsewhere =
            |s: &&&ServerInfo| s.rack.as_ref().is_none_or(|rack| !racks.contains(&rack));
        let far: Vec<&ServerInfo> = free.iter().filter(elsewhere).copied().collect();
        // The only server there ever was keeps its replicas itself.
        let strict = view.settings.strict_racks && view.list.grown;
        let mut candidates = match far.is_empty() && !strict {
            true => free,
            false => far,
        };
        rng.shuffle(&mut candidates);
        if !primary {
            return candidates.first().map(|s| s.id);
        }
        candidates.truncate(CANDIDATES);
        candidates
            .into_iter()
            .min_by_key(|s| self.read_time(s))
            .map(|s| s.id)
    }

    /// How long a backup would read all of our primaries and one more, in arbitrary units.
    fn read_time(&self, server: &ServerInfo) -> u64 {
        let primaries = u64::from(self.primaries.get(&server.id).copied().unwrap_or(0)) + 1;
        let speed = if server.disk_mb_per_s == 0 {
            SPEED_UNKNOWN
        } else {
            server.disk_mb_per_s
        };
        (primaries << 32) / u64::from(speed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::ServerListVersion;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Counter(AtomicU64);
    impl Rng for Counter {
        fn next_u64(&self) -> u64 {
            self.0
                .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
                .wrapping_mul(0xd6e8_feb8_6659_fd93)
        }
    }

    fn view(racks: &[Option<&str>], speed: impl Fn(u64) -> u32) -> View {
        let server = |(id, rack): (u64, &Option<&str>)| ServerInfo {
            rack: rack.map(str::to_owned),
            disk_mb_per_s: speed(id),
            ..ServerInfo::plain(ServerId(id), format!("server-{id}"))
        };
        let servers = (1..).zip(racks).map(server).collect();
        let list = ServerList {
            version: ServerListVersion(1),
            servers,
            grown: racks.len() > 1,
            ..ServerList::default()
        };
        View {
            me: ServerId(1),
            rack: racks[0].map(str::to_owned),
            list: Arc::new(list),
            settings: ClusterSettings {
                replicas: 3,
                min_replicas: 2,
                synced: true,
                strict_racks: false,
            },
        }
    }

    fn rng() -> Counter {
        Counter(AtomicU64::new(7))
    }

    #[test]
    fn a_replica_goes_to_another_rack_when_there_is_one() {
        let racks = [Some("a"), Some("a"), Some("b"), Some("b"), Some("c")];
        let (view, placement, rng) = (view(&racks, |_| 100), Placement::default(), rng());
        for _ in 0..50 {
            let first = placement
                .choose(&view, &|_| false, &[], true, Moment::default(), &rng)
                .expect("there are some");
            assert!(first > ServerId(2), "{first} is in the master's rack");
            let second = placement.choose(
                &view,
                &|s| s == ServerId(3),
                &[ServerId(3)],
                false,
                Moment::default(),
                &rng,
            );
            assert_eq!(second, Some(ServerId(5)));
            let near = [ServerId(3), ServerId(5)];
            let third = placement.choose(
                &view,
                &|s| near.contains(&s),
                &near,
                false,
                Moment::default(),
                &rng,
            );
            assert!(
                third == Some(ServerId(2)) || third == Some(ServerId(4)),
                "no rack is left, any server will do"
            );
        }
    }

    // shows: REP-17
    #[test]
    fn with_strict_racks_a_replica_goes_to_another_rack_or_nowhere() {
        let racks = [Some("a"), Some("a"), Some("b"), Some("b"), Some("c"), None];
        let (mut view, placement, rng) = (view(&racks, |_| 100), Placement::default(), rng());
        view.settings.strict_racks = true;
        let choose = |near: &[ServerId]| {
            let taken = |server| near.contains(&server);
            placement.choose(&view, &taken, near, false, Moment::default(), &rng)
        };
        for _ in 0..50 {
            let mut places = Vec::new();
            while let Some(next) = choose(&places) {
                places.push(next);
            }
            places.sort_unstable();
            assert_eq!(view.places(), places.len());
            // A server of which no rack is known stands alone.
            assert!(
                matches!(*places, [ServerId(3 | 4), ServerId(5), ServerId(6)]),
                "{places:?}"
            );
        }
    }

    #[test]
    fn primaries_follow_the_speed_of_disks() {
        let view = view(&[None; 6], |id| if id == 2 { 400 } else { 100 });
        let (mut placement, rng) = (Placement::default(), rng());
        for _ in 0..800 {
            let chosen = placement
                .choose(&view, &|_| false, &[], true, Moment::default(), &rng)
                .expect("there are some");
            placement.count_primary(chosen, true);
        }
        let of = |id| placement.primaries[&ServerId(id)];
        assert_eq!(of(2), 400, "{:?}", placement.primaries);
        assert!((3..=6).all(|id| of(id) == 100), "{:?}", placement.primaries);
        assert!(
            !placement.primaries.contains_key(&ServerId(1)),
            "never the master itself"
        );
    }

    #[test]
    fn a_full_backup_is_left_in_peace_for_a_while() {
        let (view, mut placement, rng) = (view(&[None; 2], |_| 100), Placement::default(), rng());
        let second = |n| Moment(Duration::from_secs(n));
        placement.set_full(ServerId(2), second(10));
        assert_eq!(
            placement.choose(&view, &|_| false, &[], true, second(9), &rng),
            None
        );
        assert_eq!(
            placement.next_retry(second(9)),
            Some(Duration::from_secs(1))
        );
        assert_eq!(
            placement.choose(&view, &|_| false, &[], true, second(10), &rng),
            Some(ServerId(2))
        );
    }

    #[test]
    fn a_backup_that_is_bad_again_and_again_is_remembered_for_longer() {
        let mut placement = Placement::default();
        let second = |n| Moment(Duration::from_secs(n));
        placement.set_bad(ServerId(2), second(0));
        // Of the same trouble.
        placement.set_bad(ServerId(2), second(9));
        assert!(placement.is_bad(ServerId(2), second(9)));
        assert!(!placement.is_bad(ServerId(2), second(10)));
        placement.set_bad(ServerId(2), second(12));
        let next = placement.next_retry(second(12));
        assert_eq!(next, Some(Duration::from_secs(20)));
        placement.set_bad(ServerId(2), second(60));
        assert_eq!(placement.next_retry(second(60)), Some(BAD_PAUSE_MIN));
        assert!(!placement.is_bad(ServerId(3), second(60)));
    }

    #[test]
    fn that_a_backup_is_full_is_news_once_and_again_after_a_minute_without() {
        let mut placement = Placement::default();
        let second = |n| Moment(Duration::from_secs(n));
        assert!(placement.is_news(ServerId(2), second(0)));
        for now in (0..600).step_by(10) {
            placement.set_full(ServerId(2), second(now + 10));
            assert!(!placement.is_news(ServerId(2), second(now + 10)));
        }
        assert!(placement.is_news(ServerId(3), second(600)));
        assert!(!placement.is_news(ServerId(2), second(660)));
        assert!(placement.is_news(ServerId(2), second(661)));
    }

    // shows: REP-9
    #[test]
    fn the_only_server_is_its_own_backup_until_another_joins() {
        let alone = view(&[None], |_| 100);
        assert_eq!((alone.wanted(), alone.needed()), (1, 1));
        let chosen =
            Placement::default().choose(&alone, &|_| false, &[], true, Moment::default(), &rng());
        assert_eq!(chosen, Some(ServerId(1)));
        let two = view(&[None; 2], |_| 100);
        assert_eq!((two.wanted(), two.needed()), (3, 2));
        assert!(!two.is_usable(ServerId(1)));
    }
}
