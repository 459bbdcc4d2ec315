//! What operators ask of a receiver and what they are answered: each request is written once, and performed for the command
//! on the receiver's machine, for the route over HTTP and so for the command that asks from afar.

mod devices;
mod names;
mod records;
mod store;
mod tokens;

use std::future::Future;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::devices::{
    AddDevice, Changed, CloseIncarnation, DevicePage, DeviceSummary, FenceIncarnation, ListDevices,
    NewSecret, RevokeDevice, RotateDevice, ShowDevice,
};
pub use self::names::{IncarnationName, Place, SecretText, Tenant};
pub use self::records::{
    GetRecord, Heads, ListAsides, ListRecords, RecordPage, RecordStory, RecordView, ShowHeads, TimeView,
};
pub use self::store::{Epoch, RenewEpoch, ShowEpoch};
pub use self::tokens::{AddToken, ListTokens, NewToken, RevokeToken, TokenList, TokenView};

use crate::kinds::Kinds;
use crate::store::{Role, Store, StoreError};

/// Why a request was not answered, by who has to do something about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// The asker: what was asked makes no sense as it is.
    #[error("{0}")]
    Invalid(String),
    /// The asker: it is for others.
    #[error("{0}")]
    Forbidden(String),
    /// The asker: there is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// The asker: things are not as they would have to be.
    #[error("{0}")]
    Refused(String),
    /// Whoever runs the store; the same again may go well.
    #[error("{0}")]
    Unavailable(String),
    /// Whoever runs the store: it holds what cannot be.
    #[error("{0}")]
    Damaged(String),
}

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        let sentence = error.to_string();
        match error {
            StoreError::Unavailable(_) => Self::Unavailable(sentence),
            StoreError::NotFound(_) => Self::NotFound(sentence),
            StoreError::Refused(_) => Self::Refused(sentence),
            StoreError::Damaged(_) => Self::Damaged(sentence),
        }
    }
}

/// What a request gives.
pub type Result<T> = std::result::Result<T, AdminError>;

/// Where requests are performed.
#[derive(Clone)]
pub struct Desk {
    /// Where everything is.
    pub store: Arc<dyn Store>,
    /// What bodies mean.
    pub kinds: Arc<Kinds>,
    /// The receiver's clock, in milliseconds since 1970.
    pub now_ms: u64,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// What they may do.
    pub role: Role,
    /// Whose things they may see and change; all without one.
    pub tenant: Option<String>,
}

impl Asker {
    /// Whoever can open the store may do everything with it.
    pub fn operator() -> Self {
        Self { role: Role::Admin, tenant: None }
    }

    /// The tenant that a question is about: the asker's own, if they are bound to one.
    fn tenant_of(&self, asked: Option<String>) -> Result<Option<String>> {
        match (&self.tenant, asked) {
            (Some(own), Some(asked)) if *own != asked => {
                Err(AdminError::Forbidden(format!("this token is for the tenant {own}, not for {asked}")))
            }
            (Some(own), _) => Ok(Some(own.clone())),
            (None, asked) => Ok(asked),
        }
    }

    /// Whether things of this tenant are there for the asker.
    fn sees(&self, tenant: &str) -> bool {
        self.tenant.as_deref().is_none_or(|own| own == tenant)
    }

    /// For what is everybody's: the asker may not be bound to a tenant.
    fn is_for_all(&self) -> Result<()> {
        match &self.tenant {
            None => Ok(()),
            Some(own) => Err(AdminError::Forbidden(format!(
                "this token is for the tenant {own}; it takes one that is for all of them"
            ))),
        }
    }
}

/// How a request travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads. What is not in the path is in the query.
    Get,
    /// Changes. What is not in the path is in a JSON object.
    Post,
    /// Takes something away. Everything is in the path.
    Delete,
}

/// A question or an order. Fields whose names are in the path travel there.
pub trait Request: Serialize + DeserializeOwned + Send + 'static {
    /// What it is answered with.
    type Answer: Serialize + DeserializeOwned + Send + 'static;
    /// How it travels.
    const METHOD: Method;
    /// Where it goes, with the names of fields in braces.
    const PATH: &'static str;
    /// Who may ask.
    const NEEDS: Role;

    /// Does it, for somebody whose role was found good. If the future is dropped, it may have been done all the same.
    fn perform(self, desk: &Desk, asker: &Asker) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// Performs a request, if the asker may. If the future is dropped, it may have been done all the same.
pub async fn ask<R: Request>(desk: &Desk, asker: &Asker, request: R) -> Result<R::Answer> {
    if asker.role < R::NEEDS {
        let needed = match R::NEEDS {
            Role::Admin => "only an admin's token may do this",
            _ => "only a viewer's or an admin's token may do this",
        };
        return Err(AdminError::Forbidden(needed.into()));
    }
    request.perform(desk, asker).await
}
