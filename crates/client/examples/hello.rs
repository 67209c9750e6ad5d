//! A program that keeps an object in a cluster: all that it takes, from the event loop to the end.
//! Its argument is where the coordinators listen, with commas; 127.0.0.1:7700 without one.

use bytes::Bytes;
use pluvio_client::{Client, ClientError, ClientOptions};
use pluvio_env_os::{NoDisk, OsOptions, OsRuntime, current_core};
use pluvio_net::{NetOptions, OsNetwork};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args().nth(1);
    let coordinators = given.unwrap_or_else(|| "127.0.0.1:7700".to_owned());
    // One event loop, with its network and without a data directory.
    let runtime = OsRuntime::start(&OsOptions::with_cores(1))?;
    let network = OsNetwork::new(
        NetOptions::default(),
        runtime.tasks(),
        runtime.clock(),
        current_core,
    );
    let env = runtime.env(Arc::new(network), Arc::new(NoDisk));
    let client = Client::new(&env, ClientOptions::new(coordinators.split(',')));
    let done = runtime.block_on(hello(client));
    runtime.shutdown(Duration::from_secs(1));
    Ok(done?)
}

async fn hello(client: Client) -> Result<(), ClientError> {
    let table = client.create_table("greetings", None).await?;
    let value = Bytes::from_static(b"hello");
    client.write(&table, b"first", value).await?;
    if let Some(object) = client.read(&table, b"first").await? {
        let text = String::from_utf8_lossy(&object.value);
        println!("{text}, at version {}", object.version);
    }
    client.delete(&table, b"first").await?;
    println!("done");
    Ok(())
}
