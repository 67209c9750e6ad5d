//! Requests to servers.

use super::detect::Detector;
use crate::ledger::Ledger;
use crate::options::CoordinatorOptions;
use core::time::Duration;
use pluvio_env::{Address, Env, Network};
use pluvio_wire::{Header, Refusal, Request, RpcError, ServerInfo};
use std::sync::Arc;

/// See the module.
pub(crate) struct Calls {
    network: Arc<dyn Network>,
    limit: Duration,
    ledger: Arc<Ledger>,
    detector: Arc<Detector>,
}

impl Calls {
    pub(crate) fn new(
        env: &Env,
        options: &CoordinatorOptions,
        ledger: Arc<Ledger>,
        detector: Arc<Detector>,
    ) -> Self {
        Self {
            network: env.network.clone(),
            limit: options.call_limit,
            ledger,
            detector,
        }
    }

    /// Sends a request to one life of a server, once this coordinator may act (LEAD-2).
    pub(crate) async fn call<R: Request>(
        &self,
        to: &ServerInfo,
        request: &R,
        limit: Duration,
    ) -> Result<R::Reply, RpcError> {
        self.ledger.tenure().until_it_leads().await;
        let address = Address::from(to.address.as_str());
        pluvio_wire::call(&*self.network, &address, Header::to(to.id), request, limit).await
    }

    /// [`Calls::call`] that gives up as soon as the server is not up any more: `None`. A server
    /// that cannot be reached is suspected.
    pub(crate) async fn call_while_up<R: Request + Sync>(
        &self,
        to: &ServerInfo,
        request: &R,
    ) -> Option<Result<R::Reply, RpcError>> {
        let id = to.id;
        let result = tokio::select! {
            biased;
            () = self.ledger.until(|state| !state.is_up(id)) => return None,
            result = self.call(to, request, self.limit) => result,
        };
        if let Err(RpcError::Call(_) | RpcError::Refused(Refusal::Refresh)) = &result {
            self.detector.suspect(id);
        }
        Some(result)
    }
}
