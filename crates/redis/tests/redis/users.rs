//! Users, passwords and rights.
