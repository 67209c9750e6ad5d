//! A place that is a bucket of an object store, or a part of one: `s3://BUCKET/PREFIX`.
//!
//! Credentials, region and endpoint come from the environment, by the names that the tools of AWS
//! have. A request is tried again [`RETRIES`] times within [`RETRY_FOR`], and then fails.
//!
//! An object is whole or not there, and durable when the store has answered; so nothing is left to
//! [`Ground::settle`].

use crate::error::ArchiveError;
use crate::ground::{Ground, Listed, Room, Write};
use core::time::Duration;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as Key;
use object_store::{
    BackoffConfig, ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
    RetryConfig,
};
use std::future::Future;
use std::path::PathBuf;
use tokio::runtime::{Builder, Runtime};

/// How often a request is tried again.
const RETRIES: usize = 4;
/// For how long at most.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// For one try: a pack over a slow line.
const ANSWERED_IN: Duration = Duration::from_secs(120);
/// For the connection alone.
const CONNECTED_IN: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(crate) struct Bucket {
    name: String,
    prefix: Key,
    store: Box<dyn ObjectStore>,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Bucket {
    /// The place behind `s3://`. Nothing is asked yet.
    pub(crate) fn s3(name: &str, behind: &str) -> Result<Self, ArchiveError> {
        // The part before an `@` may be a secret, and is not told again.
        let told = match behind.rsplit_once('@') {
            Some((_, rest)) => format!("s3://…@{rest}"),
            None => name.to_owned(),
        };
        let wrong = |why: &str| ArchiveError::NoBucket {
            name: told.clone(),
            why: why.to_owned(),
        };
        let behind = behind.trim_end_matches('/');
        let (bucket, prefix) = behind.split_once('/').unwrap_or((behind, ""));
        if bucket.is_empty() || bucket.contains(['@', ':', '?', '#']) {
            return Err(wrong(
                "give s3://BUCKET/PREFIX; credentials come from the environment",
            ));
        }
        let prefix = Key::parse(prefix).map_err(|error| wrong(&error.to_string()))?;
        // The process may have it already.
        let _chosen = rustls::crypto::ring::default_provider().install_default();
        let options = ClientOptions::new()
            .with_timeout(ANSWERED_IN)
            .with_connect_timeout(CONNECTED_IN)
            .with_allow_http(endpoint_is_plain());
        let store = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(options)
            .with_retry(RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries: RETRIES,
                retry_timeout: RETRY_FOR,
            })
            .build()
            .map_err(|error| wrong(&error.to_string()))?;
        Self::over(name.trim_end_matches('/'), prefix, Box::new(store))
    }

    /// A place in any store.
    pub(crate) fn over(
        name: &str,
        prefix: Key,
        store: Box<dyn ObjectStore>,
    ) -> Result<Self, ArchiveError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Self {
            name: name.to_owned(),
            prefix,
            store,
            runtime: Some(runtime.map_err(|error| ArchiveError::io(name.as_ref(), error))?),
        })
    }

    fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        let runtime = self.runtime.as_ref();
        runtime.expect("it is not dropped").block_on(answer)
    }

    fn key(&self, (room, name): (Room, &str)) -> Key {
        self.prefix.clone().join(room.name()).join(name)
    }

    fn fail(&self, file: Option<(Room, &str)>, error: &Error) -> ArchiveError {
        ArchiveError::Store {
            path: self.path(file),
            why: error.to_string(),
            advice: advice(error),
        }
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // The usual way waits, which a task of another runtime must not.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whether the endpoint that the environment names is without TLS.
fn endpoint_is_plain() -> bool {
    ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
        .iter()
        .any(|name| std::env::var(name).is_ok_and(|url| url.starts_with("http://")))
}

fn advice(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } => "; are bucket and prefix right?",
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            "; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the rights of that user"
        }
        _ => {
            "; check AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and the network, and run the \
             command again: it goes on"
        }
    }
}

impl Ground for Bucket {
    fn path(&self, file: Option<(Room, &str)>) -> PathBuf {
        let place = PathBuf::from(&self.name);
        match file {
            Some((room, name)) => place.join(room.name()).join(name),
            None => place,
        }
    }

    /// Buckets have no directories.
    fn prepare(&self) -> Result<(), ArchiveError> {
        Ok(())
    }

    fn read(&self, file: (Room, &str), most: u64) -> Result<Vec<u8>, ArchiveError> {
        self.wait(async {
            let found = self.store.get(&self.key(file)).await;
            let found = found.map_err(|error| self.fail(Some(file), &error))?;
            if found.meta.size > most {
                return Err(ArchiveError::damaged(
                    &self.path(Some(file)),
                    "it is too long",
                ));
            }
            let bytes = found.bytes().await;
            let bytes = bytes.map_err(|error| self.fail(Some(file), &error))?;
            Ok(bytes.into())
        })
    }

    fn write(&self, file: (Room, &str), bytes: &[u8], how: Write) -> Result<(), ArchiveError> {
        let mode = match how {
            Write::Replace => PutMode::Overwrite,
            Write::Create => PutMode::Create,
        };
        let payload = PutPayload::from(bytes.to_vec());
        let key = self.key(file);
        let written = self.wait(self.store.put_opts(&key, payload, mode.into()));
        match written {
            Ok(_) => Ok(()),
            // The answer to an earlier try may have been lost.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. })
                if how == Write::Create =>
            {
                match self.read(file, bytes.len() as u64) {
                    Ok(there) if there == bytes => Ok(()),
                    Ok(_) | Err(_) => Err(ArchiveError::Exists(self.path(Some(file)))),
                }
            }
            Err(error) => Err(self.fail(Some(file), &error)),
        }
    }

    fn list(&self, room: Room) -> Result<Vec<Listed>, ArchiveError> {
        let prefix = self.prefix.clone().join(room.name());
        let found = self.wait(self.store.list_with_delimiter(Some(&prefix)));
        let found = found.map_err(|error| self.fail(None, &error))?;
        let listed = found.objects.into_iter().filter_map(|object| {
            Some(Listed {
                name: object.location.filename()?.to_owned(),
                bytes: object.size,
                written_ms: u64::try_from(object.last_modified.timestamp_millis()).ok()?,
                is_directory: false,
            })
        });
        Ok(listed.collect())
    }

    fn remove(&self, file: (Room, &str)) -> Result<(), ArchiveError> {
        match self.wait(self.store.delete(&self.key(file))) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.fail(Some(file), &error)),
        }
    }

    fn settle(&self, _room: Room) -> Result<(), ArchiveError> {
        Ok(())
    }
}
