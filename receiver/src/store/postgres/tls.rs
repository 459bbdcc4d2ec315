//! What a URL says about the server, and TLS to it.

use std::str::FromStr;

use tokio_postgres::{Config, NoTls};

use crate::store::{Result, StoreError};

/// Takes a URL apart.
pub(super) fn settings(url: &str) -> Result<(Config, Option<NoTls>)> {
    // Why it is not understood is not said: it might be the password.
    let config = Config::from_str(url).map_err(|_| {
        StoreError::Refused(
            "the database's URL is not understood: it is postgres://user:password@host:port/database, and in the password \
             what has a meaning in a URL is written as %40 and so on"
                .into(),
        )
    })?;
    Ok((config, None))
}
