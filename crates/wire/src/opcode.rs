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

/// The class of an operation. Each class has its own limit of requests in progress, so one class
/// cannot starve another. A data operation may wait for replication; replication waits for nobody
/// (rule D) [RAMCloud §5.3].
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
    ($(
        $(#[$group_doc:meta])*
        $group:ident: $ops:ident, answered by $role:ident {
            $($(#[$doc:meta])* $name:ident = $number:literal, $class:ident, $idempotent:literal;)*
        }
    )*) => {
        /// Every operation there is. Numbers are never used again.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Opcode {
            $($($(#[$doc])* $name = $number,)*)*
        }

        $(
            $(#[$group_doc])*
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
            pub enum $ops {
                $($(#[$doc])* $name,)*
            }

            impl From<$ops> for Opcode {
                fn from(op: $ops) -> Self {
                    match op {
                        $($ops::$name => Self::$name,)*
                    }
                }
            }
        )*

        /// An operation among those of its role. A role's dispatch is a match over its own enum: an
        /// operation of another role does not compile into it.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum RoleOp {
            $($(#[$group_doc])* $group($ops),)*
        }

        impl Opcode {
            /// All operations.
            pub const ALL: &'static [Self] = &[$($(Self::$name,)*)*];

            /// The operation with this number, if there is one.
            #[must_use]
            pub fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($($number => Some(Self::$name),)*)*
                    _ => None,
                }
            }

            /// Its name, for traces and metrics.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($(Self::$name => stringify!($name),)*)*
                }
            }

            /// Who answers it.
            #[must_use]
            pub fn role(self) -> Role {
                match self {
                    $($(Self::$name => Role::$role,)*)*
                }
            }

            /// The operation among those of its role, for dispatch.
            #[must_use]
            pub fn by_role(self) -> RoleOp {
                match self {
                    $($(Self::$name => RoleOp::$group($ops::$name),)*)*
                }
            }

            /// Its class.
            #[must_use]
            pub fn class(self) -> Class {
                match self {
                    $($(Self::$name => Class::$class,)*)*
                }
            }

            /// Whether executing it twice has the effect of executing it once.
            #[must_use]
            pub fn is_idempotent(self) -> bool {
                match self {
                    $($(Self::$name => $idempotent,)*)*
                }
            }
        }
    };
}

// Numbers 1 to 7 are retired: they meant single reads, writes, deletes and increments and their
// batches. They are never used again.
opcodes! {
    /// Operations on objects; the master that owns them answers.
    Data: DataOp, answered by Master {
        /// Read one or many objects, or parts of them.
        Get = 10, Data, true;
        /// Change one or many objects.
        Mutate = 11, Data, false;
        /// Read and change objects of one owner, all of it or nothing.
        Transact = 13, Data, false;
        /// Decide about a transaction of several owners.
        Decide = 14, Data, true;
        /// Say how this owner votes about a transaction, and let a missing vote be "no".
        Vote = 15, Data, true;
        /// Make of keys that a transaction has locked what was decided.
        Release = 16, Data, true;
        /// Is what an early answer rests on durable? Answers when it is.
        AwaitDurable = 12, Data, true;
        /// The next objects of a table in hash order.
        Enumerate = 8, Data, true;
        /// Number and bytes of a table's objects on one server.
        CountObjects = 9, Data, true;
    }

    /// The other operations of a master.
    Master: MasterOp, answered by Master {
        /// Is this replica, found on disk at start, still needed?
        IsReplicaNeeded = 22, Control, true;
        /// A backup goes on without these replicas: they are lost.
        ReplicasLost = 23, Control, true;
        /// Recover one partition.
        Recover = 33, Recovery, true;
        /// Take over a tablet from the server that serves it.
        ReceiveTablet = 35, Recovery, true;
        /// The next part of a tablet that moves.
        GetTabletData = 36, Recovery, true;
        /// A tablet has moved away for good, or stays.
        EndMigration = 38, Control, true;
        /// Own these tablets, which hold nothing yet.
        TakeTablets = 42, Control, true;
        /// Give up all tablets of a table.
        DropTablets = 43, Control, true;
        /// Cut a tablet in two; both stay here.
        SplitTabletLocal = 44, Control, true;
        /// Serve neighbouring tablets as one.
        JoinTabletsLocal = 49, Control, true;
        /// The next step of a backup towards one moment for all objects.
        Cut = 50, Control, true;
        /// Say how quotas of tables are used, and take shares of them.
        ShareQuotas = 51, Control, true;
        /// Where on its machine may processes map this server's memory?
        GetDoor = 52, Control, true;
    }

    /// Operations of a backup.
    Backup: BackupOp, answered by Backup {
        /// Open, append to, or close a replica.
        WriteReplica = 20, Replication, true;
        /// Free a replica.
        FreeReplica = 21, Replication, true;
        /// List the replicas of a crashed master and refuse it from now on.
        StartRecovery = 30, Recovery, true;
        /// How the crashed master's tablets are partitioned.
        SetPartitions = 31, Recovery, true;
        /// The entries of one segment that belong to one partition.
        GetRecoveryData = 32, Recovery, true;
        /// Keep a replica of a crashed master that another backup has.
        CopyReplica = 24, Recovery, true;
        /// The bytes of a replica of a crashed master.
        ReadReplica = 25, Recovery, true;
    }

    /// Operations of the coordinator.
    Coordinator: CoordinatorOp, answered by Coordinator {
        /// A recovery master is done with its partition.
        RecoveryMasterFinished = 34, Control, true;
        /// A recovery master has replayed its partition; its replicas are still to come.
        PartitionReplayed = 39, Control, true;
        /// A server has received a tablet, or could not.
        TabletReceived = 37, Control, true;
        /// Join the cluster.
        Enlist = 60, Control, true;
        /// A server does not answer: look whether it crashed.
        HintServerCrashed = 61, Control, true;
        /// The server list.
        GetServerList = 62, Control, true;
        /// Replicas of this open segment below this epoch are stale.
        SetReplicationEpoch = 63, Control, true;
        /// A table and its tablets.
        GetTable = 64, Control, true;
        /// Create a table, or find it when it exists.
        CreateTable = 65, Control, true;
        /// Drop a table and all its objects.
        DropTable = 66, Control, true;
        /// All tables.
        ListTables = 67, Control, true;
        /// Cut a tablet in two.
        SplitTablet = 68, Control, true;
        /// What the whole cluster has and does.
        GetClusterStatus = 69, Control, true;
        /// Which coordinator leads; answered by those that do not, too.
        GetLeader = 70, Ping, true;
        /// Move a tablet to another server.
        MigrateTablet = 71, Control, true;
        /// How a migration goes.
        GetMigration = 72, Control, true;
        /// Move all tablets of a server away, or let it have tablets again.
        DrainServer = 73, Control, true;
        /// How far a drain is.
        GetDrain = 74, Control, true;
        /// A server without tablets leaves the cluster.
        LeaveCluster = 75, Control, true;
        /// Change the quota of a table.
        SetTable = 76, Control, true;
        /// Change settings of the cluster.
        ChangeSettings = 80, Control, true;
        /// Let the cluster speak the newest version.
        FinalizeVersion = 81, Control, true;
        /// Switch balancing, or ask what it does.
        Balance = 90, Control, true;
        /// Go on without the part of a crashed server's log that is lost for good.
        GiveUpLost = 92, Control, true;
    }

    /// Operations that every process answers.
    Any: ServerOp, answered by Any {
        /// Are you alive, and who are you?
        Ping = 40, Ping, true;
        /// A new server list.
        UpdateServerList = 41, Control, true;
        /// The differences of a new server list from an earlier one.
        ChangeServerList = 47, Control, true;
        /// What a server has and does.
        GetServerStatus = 45, Control, true;
        /// Which keys of this server are used most, and which are the largest?
        GetTopKeys = 46, Control, true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: WIRE-3
    #[test]
    fn every_opcode_is_found_by_its_number() {
        for op in Opcode::ALL {
            assert_eq!(Opcode::from_number(*op as u16), Some(*op), "{}", op.name());
        }
        for retired in 0..=7 {
            assert_eq!(Opcode::from_number(retired), None);
        }
    }

    #[test]
    fn each_role_has_its_own_operations() {
        for op in Opcode::ALL {
            let (back, role) = match op.by_role() {
                RoleOp::Data(op) => (Opcode::from(op), Role::Master),
                RoleOp::Master(op) => (op.into(), Role::Master),
                RoleOp::Backup(op) => (op.into(), Role::Backup),
                RoleOp::Coordinator(op) => (op.into(), Role::Coordinator),
                RoleOp::Any(op) => (op.into(), Role::Any),
            };
            assert_eq!((back, role), (*op, op.role()), "{}", op.name());
        }
    }
}
