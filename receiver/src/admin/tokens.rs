//! Tokens: what programs prove themselves with. Only a hash of one is kept.

use serde::{Deserialize, Serialize};

use super::{AdminError, Asker, Desk, Method, Request, Result, Tenant};
use crate::http::auth;
use crate::moment::Moment;
use crate::store::{Role, TokenRow};

/// Characters of a label, at most.
const LABEL_MAX: usize = 200;

/// Makes a token.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddToken {
    /// What it may do.
    pub role: Role,
    /// For whom. A client's is for the default tenant if none is named, others are for all.
    pub tenant: Option<Tenant>,
    /// What it is for.
    #[serde(default)]
    pub label: String,
}

/// A token that is told this once.
#[derive(Clone, Serialize, Deserialize)]
pub struct NewToken {
    /// The token.
    pub token: String,
    /// What is kept of it.
    #[serde(flatten)]
    pub view: TokenView,
}

/// A token, without what proves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenView {
    /// Its number.
    pub id: i64,
    /// What it may do.
    pub role: Role,
    /// For whom; all without one.
    pub tenant: Option<String>,
    /// What it is for.
    pub label: String,
    /// When it was made.
    pub created_at: Moment,
    /// Since when it is worthless.
    pub revoked_at: Option<Moment>,
}

impl From<TokenRow> for TokenView {
    fn from(row: TokenRow) -> Self {
        let TokenRow { id, role, tenant, label, created_ms, revoked_ms } = row;
        Self { id, role, tenant, label, created_at: Moment(created_ms), revoked_at: revoked_ms.map(Moment) }
    }
}

impl Request for AddToken {
    type Answer = NewToken;
    const METHOD: Method = Method::Post;
    const PATH: &'static str = "/v1/admin/tokens";
    const NEEDS: Role = Role::Admin;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<NewToken> {
        if self.label.chars().count() > LABEL_MAX || self.label.chars().any(char::is_control) {
            let sentence = format!("a label has {LABEL_MAX} characters at most, on one line");
            return Err(AdminError::Invalid(sentence));
        }
        let tenant = asker.tenant_of(self.tenant.map(|tenant| tenant.to_string()))?;
        let default = (self.role == Role::Client).then(|| Tenant::DEFAULT.to_owned());
        let mut row = TokenRow {
            id: 0,
            role: self.role,
            tenant: tenant.or(default),
            label: self.label,
            created_ms: desk.now_ms,
            revoked_ms: None,
        };
        let token = auth::new_token().map_err(|error| {
            AdminError::Unavailable(format!("the system gives no random numbers: {error}"))
        })?;
        row.id = desk.store.add_token(auth::hash(&token), row.clone()).await?;
        Ok(NewToken { token, view: row.into() })
    }
}

/// All tokens that the asker may see.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListTokens {}

/// Some tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenList {
    /// The tokens, in the order in which they were made.
    pub tokens: Vec<TokenView>,
}

impl Request for ListTokens {
    type Answer = TokenList;
    const METHOD: Method = Method::Get;
    const PATH: &'static str = "/v1/admin/tokens";
    const NEEDS: Role = Role::Viewer;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<TokenList> {
        let all = desk.store.tokens().await?;
        let seen = all.into_iter().filter(|token| is_seen(asker, token));
        Ok(TokenList { tokens: seen.map(TokenView::from).collect() })
    }
}

/// Who is bound to a tenant does not see tokens that are for all.
fn is_seen(asker: &Asker, token: &TokenRow) -> bool {
    asker.tenant.is_none() || asker.tenant == token.tenant
}

/// Makes a token worthless.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevokeToken {
    /// Its number.
    pub id: i64,
}

impl Request for RevokeToken {
    type Answer = TokenView;
    const METHOD: Method = Method::Delete;
    const PATH: &'static str = "/v1/admin/tokens/{id}";
    const NEEDS: Role = Role::Admin;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<TokenView> {
        let all = desk.store.tokens().await?;
        let found = all.into_iter().find(|token| token.id == self.id && is_seen(asker, token));
        let found = found.ok_or_else(|| AdminError::NotFound(format!("there is no token {}", self.id)))?;
        desk.store.revoke_token(self.id, desk.now_ms).await?;
        let revoked_ms = found.revoked_ms.or(Some(desk.now_ms));
        Ok(TokenRow { revoked_ms, ..found }.into())
    }
}
