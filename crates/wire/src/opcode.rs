//! The one table of operations.

/// Who answers an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The coordinator.
    Coordinator,
    /// The master part of a server.
    Master,
    /// The backup part of a server.
    Backup,
    /// Every process.
    Any,
}

/// The class of an operation. Each class has its own limit of requests in progress, so that one
/// class cannot starve another: a data operation may wait for replication, replication waits for
/// nobody (rule D; 003 §5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Operations of clients on objects. May wait for `Replication`.
    Data,
    /// Masters writing replicas. Waits for the disk only.
    Replication,
    /// Reading replicas and replaying them. May wait for `Replication`.
    Recovery,
    /// Membership, tables, status. May wait for `Recovery` and `Replication`.
    Control,
    /// Are you alive? Waits for nothing.
    Ping,
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $role:ident, $class:ident, $idempotent:literal;)*) => {
        /// Every operation there is. Numbers are never used again.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Opcode {
            $($(#[$doc])* $name = $number,)*
        }

        impl Opcode {
            /// All operations.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The operation with this number, if there is one.
            #[must_use]
            pub fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its name, for traces and metrics.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Who answers it.
            #[must_use]
            pub fn role(self) -> Role {
                match self {
                    $(Self::$name => Role::$role,)*
                }
            }

            /// Its class.
            #[must_use]
            pub fn class(self) -> Class {
                match self {
                    $(Self::$name => Class::$class,)*
                }
            }

            /// Whether executing it twice has the effect of executing it once.
            #[must_use]
            pub fn is_idempotent(self) -> bool {
                match self {
                    $(Self::$name => $idempotent,)*
                }
            }
        }
    };
}

opcodes! {
    /// Read one object.
    Read = 1, Master, Data, true;
    /// Write one object.
    Write = 2, Master, Data, false;
    /// Delete one object.
    Delete = 3, Master, Data, false;
    /// Add to a number.
    Increment = 4, Master, Data, false;
    /// Read several objects.
    MultiRead = 5, Master, Data, true;
    /// Write several objects.
    MultiWrite = 6, Master, Data, false;
    /// Delete several objects.
    MultiDelete = 7, Master, Data, false;
    /// The next objects of a table in hash order.
    Enumerate = 8, Master, Data, true;
    /// Number and bytes of a table's objects on one server.
    CountObjects = 9, Master, Data, true;

    /// Open, append to, or close a replica.
    WriteReplica = 20, Backup, Replication, true;
    /// Free a replica.
    FreeReplica = 21, Backup, Replication, true;
    /// Is this replica, found on disk at start, still needed?
    IsReplicaNeeded = 22, Master, Control, true;

    /// List the replicas of a crashed master and refuse it from now on.
    StartRecovery = 30, Backup, Recovery, true;
    /// How the crashed master's tablets are partitioned.
    SetPartitions = 31, Backup, Recovery, true;
    /// The entries of one segment that belong to one partition.
    GetRecoveryData = 32, Backup, Recovery, true;
    /// Recover one partition.
    Recover = 33, Master, Recovery, true;
    /// A recovery master is done with its partition.
    RecoveryMasterFinished = 34, Coordinator, Control, true;

    /// Take over a tablet from the server that serves it.
    ReceiveTablet = 35, Master, Recovery, true;
    /// The next part of a tablet that moves.
    GetTabletData = 36, Master, Recovery, true;
    /// A server has received a tablet, or could not.
    TabletReceived = 37, Coordinator, Control, true;
    /// A tablet has moved away for good, or stays.
    EndMigration = 38, Master, Control, true;

    /// Are you alive, and who are you?
    Ping = 40, Any, Ping, true;
    /// A new server list.
    UpdateServerList = 41, Any, Control, true;
    /// Own these tablets, which hold nothing yet.
    TakeTablets = 42, Master, Control, true;
    /// Give up all tablets of a table.
    DropTablets = 43, Master, Control, true;
    /// Cut a tablet in two; both stay here.
    SplitTabletLocal = 44, Master, Control, true;
    /// What a server has and does.
    GetServerStatus = 45, Any, Control, true;

    /// Join the cluster.
    Enlist = 60, Coordinator, Control, true;
    /// A server does not answer: look whether it crashed.
    HintServerCrashed = 61, Coordinator, Control, true;
    /// The server list.
    GetServerList = 62, Coordinator, Control, true;
    /// Replicas of this open segment below this epoch are stale.
    SetReplicationEpoch = 63, Coordinator, Control, true;
    /// A table and its tablets.
    GetTable = 64, Coordinator, Control, true;
    /// Create a table, or find it when it exists.
    CreateTable = 65, Coordinator, Control, true;
    /// Drop a table and all its objects.
    DropTable = 66, Coordinator, Control, true;
    /// All tables.
    ListTables = 67, Coordinator, Control, true;
    /// Cut a tablet in two.
    SplitTablet = 68, Coordinator, Control, true;
    /// What the whole cluster has and does.
    GetClusterStatus = 69, Coordinator, Control, true;
    /// Which coordinator leads; answered by those that do not, too.
    GetLeader = 70, Coordinator, Ping, true;
    /// Move a tablet to another server.
    MigrateTablet = 71, Coordinator, Control, true;
    /// How a migration goes.
    GetMigration = 72, Coordinator, Control, true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_is_found_by_its_number() {
        for op in Opcode::ALL {
            assert_eq!(Opcode::from_number(*op as u16), Some(*op), "{}", op.name());
        }
        assert_eq!(Opcode::from_number(0), None);
    }
}
