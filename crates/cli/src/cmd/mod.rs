//! One file for each command.

pub mod backup;
pub mod balance;
pub mod bench;
pub mod demo;
pub mod dev;
pub mod drain;
pub mod export;
pub mod import;
pub mod import_redis;
pub mod lifetime;
pub mod manual;
pub mod migrate;
pub mod objects;
pub mod rates;
pub mod recover;
pub mod restore;
pub mod scan;
pub mod settings;
pub mod space;
pub mod status;
pub mod table;
pub mod top;
pub mod top_servers;
