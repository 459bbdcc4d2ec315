//! The store itself: the name that devices know it by.

use serde::{Deserialize, Serialize};

use super::{Asker, Desk, Method, Request, Result};
use crate::store::Role;

/// The random name of the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoch {
    /// 16 hexadecimal digits.
    pub epoch: String,
}

impl Epoch {
    fn new(epoch: u64) -> Self {
        Self { epoch: format!("{epoch:016x}") }
    }
}

/// What the database is called.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShowEpoch {}

impl Request for ShowEpoch {
    type Answer = Epoch;
    const METHOD: Method = Method::Get;
    const PATH: &'static str = "/v1/admin/epoch";
    const NEEDS: Role = Role::Viewer;

    async fn perform(self, desk: &Desk, _: &Asker) -> Result<Epoch> {
        Ok(Epoch::new(desk.store.epoch()))
    }
}

/// Gives the database another name, so that devices repeat their accounts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewEpoch {}

impl Request for RenewEpoch {
    type Answer = Epoch;
    const METHOD: Method = Method::Post;
    const PATH: &'static str = "/v1/admin/epoch";
    const NEEDS: Role = Role::Admin;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<Epoch> {
        asker.is_for_all()?;
        Ok(Epoch::new(desk.store.renew_epoch().await?))
    }
}
