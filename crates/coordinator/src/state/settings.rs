//! What holds for the whole cluster: how objects are kept, and which version its members speak.
//!
//! - SETTINGS-1: the settings are stored with the cluster, and every server list carries them. They
//!   come from the flags of the first leader that has some, or else from the first server that
//!   joins. A server that expects others does not join.
//! - SETTINGS-2: whether there are replicas at all never changes. A log has them from its birth or
//!   never, and recovery of a log without them would find nothing.
//! - VERSION-1: the active version only rises, and only to one that the leader and every server
//!   that is up speak. From then on only a process that speaks it may join or lead.
//! - VERSION-2: messages and stored data are those of the active version. So programs of the
//!   version before can take over until it rises.

use super::State;
use pluvio_wire::{
    ChangeSettings, ClusterSettings, Enlist, FatalKind, FinalizeReply, Refusal, ServerInfo,
    SettingsWish, Versions,
};

impl State {
    /// Gives a cluster that has no settings those of the leader's flags, if there are any. Warns
    /// when it has others: those stay. False when nothing changed.
    ///
    /// # Errors
    /// They make no sense, and why, for people.
    pub(crate) fn begin_settings(&mut self, flags: &SettingsWish) -> Result<bool, String> {
        let wished = ClusterSettings::USUAL.with(&flags.completed())?;
        match self.globals.settings {
            Some(settings) => {
                if let Some(what) = flags.contradiction(&settings) {
                    tracing::warn!(
                        "given, and of no effect: {what}; flags are for a cluster that begins; change it with `pluvio settings set`"
                    );
                }
                Ok(false)
            }
            None if flags.is_empty() => Ok(false),
            None => {
                self.globals.settings = Some(wished);
                Ok(true)
            }
        }
    }

    /// Compares what a server expects with the settings, which it begins where there are none
    /// (SETTINGS-1).
    ///
    /// # Errors
    /// It expects others.
    pub(crate) fn match_settings(&mut self, request: &mut Enlist) -> Result<(), Refusal> {
        let refused = |message| Err(Refusal::fatal(FatalKind::Other, message));
        let settings = match (self.globals.settings, &request.expects) {
            (Some(settings), _) => settings,
            (None, Some(expects)) => match ClusterSettings::USUAL.with(&expects.completed()) {
                Ok(settings) => {
                    tracing::info!(%settings, address = request.info.address, "the cluster gets the settings of its first server");
                    self.globals.settings = Some(settings);
                    settings
                }
                Err(why) => return refused(why),
            },
            (None, None) => return Ok(()),
        };
        let volatile = settings.replicas == 0;
        match &request.expects {
            Some(expects) => {
                if let Some(what) = expects.contradiction(&settings) {
                    return refused(format!(
                        "it was started with {what}: leave the flag out, or give the cluster's value; `pluvio settings set` changes that for all servers"
                    ));
                }
                request.info.volatile = volatile;
                Ok(())
            }
            None if request.info.volatile != volatile => refused(format!(
                "the cluster has {settings}, and this server was started with {} replicas: start it with the cluster's value",
                if volatile { "some" } else { "0" }
            )),
            None => Ok(()),
        }
    }

    /// # Errors
    /// The result makes no sense, or replicas would be begun or ended (SETTINGS-2).
    pub(crate) fn change_settings(
        &mut self,
        request: &ChangeSettings,
    ) -> Result<ClusterSettings, Refusal> {
        let refused = |message| Err(Refusal::fatal(FatalKind::Other, message));
        let Some(settings) = self.globals.settings else {
            return refused(
                "nobody has said yet how this cluster keeps its objects: start a server first"
                    .to_owned(),
            );
        };
        let changed = match settings.with(&request.change) {
            Ok(changed) => changed,
            Err(why) => return refused(why),
        };
        if (changed.replicas == 0) != (settings.replicas == 0) {
            return refused(format!(
                "replicas={} where the cluster has {}: a cluster has replicas from its beginning or never; begin another one, and take the tables there with `pluvio export` and `pluvio import`",
                changed.replicas, settings.replicas
            ));
        }
        self.keep_classes(&changed)?;
        self.globals.settings = Some(changed);
        Ok(changed)
    }

    /// Whether a server speaks the active version (VERSION-1).
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn match_version(&self, request: &Enlist) -> Result<(), Refusal> {
        let active = self.globals.active;
        let theirs = versions_of(request);
        if theirs.speak(active) {
            return Ok(());
        }
        let advice = match theirs.newest < active {
            true => "start a newer version of pluvio; there is no way back after `pluvio finalize`",
            false => {
                "start the version of pluvio that the other servers run, or one release newer; `pluvio finalize` raises the cluster's once all have it"
            }
        };
        let message =
            format!("the server speaks protocol {theirs}, and the cluster {active}: {advice}");
        Err(Refusal::fatal(FatalKind::WrongVersion, message))
    }

    /// Raises the active version to the newest one of this leader (VERSION-1).
    ///
    /// # Errors
    /// A server that is up does not speak it.
    pub(crate) fn finalize(&mut self, own: Versions) -> Result<FinalizeReply, Refusal> {
        let former = self.globals.active;
        let wanted = own.newest;
        let lacks = |info: &&ServerInfo| !info.versions.speak(wanted);
        let lacking: Vec<String> = self
            .up()
            .filter(lacks)
            .map(|s| format!("server {} at {} speaks {}", s.id, s.address, s.versions))
            .collect();
        if !lacking.is_empty() {
            let message = format!(
                "the cluster stays at version {former}: not everybody speaks {wanted}: {}; start the newer version of pluvio there, and try again",
                lacking.join(", ")
            );
            return Err(Refusal::fatal(FatalKind::WrongVersion, message));
        }
        // The leader speaks the active version, so this never lowers it.
        self.globals.active = wanted.max(former);
        Ok(FinalizeReply {
            active: self.globals.active,
            former,
        })
    }
}

/// The versions of a server that enlists. One that does not say so speaks the one that it names.
fn versions_of(request: &Enlist) -> Versions {
    let (said, newest) = (request.info.versions, request.protocol);
    match said.newest == newest {
        true => said,
        false => Versions {
            oldest: newest,
            newest,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::GLOBALS;
    use crate::testing::server;
    use pluvio_units::ClusterId;
    use pluvio_wire::PROTOCOL_VERSION;

    const NEXT: Versions = Versions {
        oldest: PROTOCOL_VERSION,
        newest: PROTOCOL_VERSION + 1,
    };
    const ONLY_NEXT: Versions = Versions {
        oldest: PROTOCOL_VERSION + 1,
        newest: PROTOCOL_VERSION + 1,
    };

    fn wish(replicas: u32) -> SettingsWish {
        SettingsWish {
            replicas: Some(replicas),
            ..SettingsWish::default()
        }
    }

    fn request(attempt: u64, versions: Versions, expects: Option<SettingsWish>) -> Enlist {
        let mut info = server(0, format!("host:{attempt}"));
        info.versions = versions;
        Enlist {
            protocol: versions.newest,
            expects,
            cluster: None,
            replaces: None,
            attempt,
            logs: 0,
            info,
        }
    }

    fn state() -> State {
        State::new(ClusterId(7))
    }

    // shows: SETTINGS-1
    #[test]
    fn a_server_with_other_settings_is_refused_and_told_what_to_do() {
        let mut state = state();
        assert!(state.begin_settings(&wish(2)).unwrap());
        let own = Versions::OWN;
        let refused = state.enlist(request(1, own, Some(wish(0)))).err().unwrap();
        let text = refused.to_string();
        assert!(
            text.contains("--replicas 0 (the cluster has 2)") && text.contains("settings set"),
            "{text}"
        );
        for (attempt, expects) in [
            (2, Some(wish(2))),
            (3, Some(SettingsWish::default())),
            (4, None),
        ] {
            state.enlist(request(attempt, own, expects)).unwrap();
        }
        let mut mistyped = request(5, own, None);
        mistyped.info.volatile = true;
        assert!(state.enlist(mistyped).is_err());
        assert_eq!(state.list().settings.unwrap().replicas, 2);
    }

    // shows: SETTINGS-1
    #[test]
    fn the_first_server_settles_what_no_leader_has() {
        let mut state = state();
        assert!(!state.begin_settings(&SettingsWish::default()).unwrap());
        let before = state.clone();
        state
            .enlist(request(1, Versions::OWN, Some(wish(0))))
            .unwrap();
        assert!(state.up().all(|info| info.volatile));
        assert!(
            state
                .enlist(request(2, Versions::OWN, Some(wish(3))))
                .is_err()
        );
        // A later leader's flags change nothing.
        assert!(!state.begin_settings(&wish(3)).unwrap());
        state.settle_list(&before);
        assert!(state.globals.list_version > before.globals.list_version);
    }

    // shows: SETTINGS-2
    #[test]
    fn settings_change_and_replicas_neither_begin_nor_end() {
        let mut state = state();
        let change = |state: &mut State, change| state.change_settings(&ChangeSettings { change });
        assert!(change(&mut state, wish(2)).is_err());
        state.begin_settings(&wish(2)).unwrap();
        let before = state.clone();
        assert_eq!(change(&mut state, wish(3)).unwrap().replicas, 3);
        state.settle_list(&before);
        assert_eq!(
            state.globals.list_version,
            before.globals.list_version.next()
        );
        assert!(change(&mut state, wish(0)).is_err());
        assert_eq!(state.globals.settings.unwrap().replicas, 3);
    }

    // shows: VERSION-1
    #[test]
    fn a_version_is_raised_when_all_speak_it_and_then_there_is_no_way_back() {
        let mut state = state();
        let (own, as_before) = (NEXT, PROTOCOL_VERSION);
        state.enlist(request(1, NEXT, None)).unwrap();
        let old = state
            .enlist(request(2, Versions::OWN, None))
            .unwrap()
            .server;
        assert!(state.enlist(request(3, ONLY_NEXT, None)).is_err());
        let refused = state.finalize(own).err().unwrap();
        let text = refused.to_string();
        assert!(text.contains(&format!("server {old} at host:2")), "{text}");
        assert_eq!(state.globals.active, as_before);
        // Its process ends, and a newer one comes back.
        state.mark_crashed(old);
        state.enlist(request(4, NEXT, None)).unwrap();
        let before = state.clone();
        let raised = state.finalize(own).unwrap();
        assert_eq!((raised.former, raised.active), (as_before, as_before + 1));
        state.settle_list(&before);
        assert!(state.globals.list_version > before.globals.list_version);
        assert_eq!(state.finalize(own).unwrap().former, as_before + 1);
        let refused = state.enlist(request(5, Versions::OWN, None)).err().unwrap();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::WrongVersion));
        assert!(refused.to_string().contains("no way back"), "{refused}");
        state.enlist(request(6, ONLY_NEXT, None)).unwrap();
    }

    #[derive(serde::Serialize)]
    struct GlobalsOfThen {
        format: u16,
        cluster: ClusterId,
        list_version: u64,
        grown: bool,
        last_server: u64,
        last_table: u64,
        last_recovery: u64,
    }

    #[test]
    fn metadata_of_before_has_no_settings_and_speaks_the_version_of_then() {
        let globals = state().globals;
        let fields = GlobalsOfThen {
            format: globals.format,
            cluster: globals.cluster,
            list_version: globals.list_version.0,
            grown: globals.grown,
            last_server: 0,
            last_table: 0,
            last_recovery: 0,
        };
        let bytes = rmp_serde::to_vec_named(&fields).unwrap();
        let read: super::super::Globals = super::super::get(GLOBALS, &bytes.into()).unwrap();
        assert_eq!(
            (read.settings, read.active),
            (None, Versions::UNSAID.newest)
        );
    }
}
