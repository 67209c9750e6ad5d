//! Looks at the cluster for the page, shared by all who have it open.

use super::cluster::{Look, as_json};
use pluvio_client::{Client, ClusterStatus, GetTopKeys, TopKeys};
use pluvio_env::{Address, Clock, Moment};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// For how long a look is told again: many open pages cost no more than one.
const FRESH: Duration = Duration::from_secs(1);
/// Rates are averages since the look before; one that is older than this is not compared with.
const COMPARED_MAX: Duration = Duration::from_secs(60);
/// In a larger cluster keys are not asked for: each server is a request.
const ASKED_FOR_KEYS_MAX: usize = 32;
/// Keys asked for of each list.
const KEYS_ASKED: u32 = 16;

/// Takes looks, one at a time.
pub struct Sampler {
    clock: Arc<dyn Clock>,
    last: Mutex<Option<Last>>,
}

struct Last {
    at: Moment,
    status: ClusterStatus,
    shown: Value,
    with_keys: bool,
}

impl Sampler {
    /// Has seen nothing yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            last: Mutex::default(),
        }
    }

    /// The cluster as the page gets it; with keys if the caller may see them.
    pub async fn look(&self, client: &Client, with_keys: bool) -> Value {
        let mut last = self.last.lock().await;
        if let Some(last) = &*last
            && last.with_keys == with_keys
            && self.clock.now().since(last.at) < FRESH
        {
            return last.shown.clone();
        }
        let status = match client.cluster_status().await {
            Ok(status) => status,
            Err(error) => {
                return json!({ "leads": true, "error": format!("no status of the cluster: {error}") });
            }
        };
        let keys = match with_keys {
            true => keys(client, &status).await,
            false => Err("Keys are shown only where the admin port is open on the loopback alone, and asked by that address. `pluvio top keys` shows them.".to_owned()),
        };
        let at = self.clock.now();
        let look = Look { status, keys };
        let before = last.as_ref();
        let before = before.filter(|last| at.since(last.at) <= COMPARED_MAX);
        let shown = as_json(&look, before.map(|last| &last.status));
        *last = Some(Last {
            at,
            status: look.status,
            shown: shown.clone(),
            with_keys,
        });
        shown
    }
}

async fn keys(client: &Client, status: &ClusterStatus) -> Result<Vec<TopKeys>, String> {
    if status.list.up().count() > ASKED_FOR_KEYS_MAX {
        return Err(format!(
            "Keys are shown with up to {ASKED_FOR_KEYS_MAX} servers. `pluvio top keys` shows them."
        ));
    }
    let request = GetTopKeys {
        table: None,
        count: KEYS_ASKED,
    };
    let asked = status.list.up().map(|info| {
        let (address, request) = (Address::from(&*info.address), &request);
        async move { client.top_keys(&address, request).await.ok() }
    });
    let answers = futures_util::future::join_all(asked).await;
    Ok(answers.into_iter().flatten().collect())
}
