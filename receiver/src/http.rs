//! The receiver over HTTP: what is where, and what every handler has at hand.

use std::sync::Arc;

use crate::kinds::Kinds;
use crate::store::Store;

/// What every handler has at hand.
#[derive(Clone)]
pub struct App {
    /// Where everything is.
    pub store: Arc<dyn Store>,
    /// What bodies mean.
    pub kinds: Arc<Kinds>,
}
