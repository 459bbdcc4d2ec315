//! `pillarbox token`: what programs and people prove themselves with.

use std::path::PathBuf;

use clap::Subcommand;

use super::output::{Reader, drawn, table, text};
use super::secret_file::SecretFile;
use super::target::{Given, Missing, Target, TargetArgs};
use super::{Ended, Result};
use crate::admin::{AddToken, ListTokens, RevokeToken, Tenant, TokenList};
use crate::moment::now_ms;
use crate::store::Role;

/// Make and revoke the tokens that programs and people prove themselves with
#[derive(Debug, clap::Args)]
pub(super) struct TokenArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    reader: Reader,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token, and tell it this once
    #[command(after_help = "\
A client posts records for its tenant. A viewer reads everything but secrets. An admin may do everything. A viewer or an admin \
with a tenant sees and changes only what is that tenant's.

Examples:
  pillarbox token add --role client --tenant north --label 'billing'
  pillarbox token add --role viewer --out viewer.token
  curl -H \"Authorization: Bearer $(cat viewer.token)\" http://127.0.0.1:8080/v1/admin/devices")]
    Add {
        /// What it may do: client, viewer or admin
        #[arg(long, hide_possible_values = true)]
        role: Role,
        /// For whom [default: a client's is for the tenant default, others are for all]
        #[arg(long)]
        tenant: Option<Tenant>,
        /// What it is for
        #[arg(long, default_value = "")]
        label: String,
        /// Write the token to this new file, for its owner only, instead of showing it
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List tokens, without what proves them
    #[command(after_help = "\
Examples:
  pillarbox token list")]
    List,
    /// Make a token worthless, at once
    #[command(after_help = "\
Examples:
  pillarbox token revoke 3")]
    Revoke {
        /// Its number, as `token list` names it
        id: i64,
    },
}

pub(super) async fn run(args: TokenArgs, given: Given) -> Result<Ended> {
    let TokenArgs { target, reader, command } = args;
    let missing = match command {
        TokenCommand::Add { .. } => Missing::Make,
        _ => Missing::Refuse,
    };
    let open = || Target::open(target, given, missing);
    match command {
        TokenCommand::Add { role, tenant, label, out } => {
            let file = out.as_deref().map(SecretFile::create).transpose()?;
            let made = open().await?.ask(AddToken { role, tenant, label }).await?;
            let whose = made.view.tenant.as_deref().map_or("all tenants".into(), |of| format!("tenant {of}"));
            let done = format!("Token {} for the role {} of {whose}.", made.view.id, role.name());
            match (file, out) {
                (Some(file), Some(path)) => {
                    file.write(&made.token)?;
                    reader.tell(&made.view, || format!("{done}\nIt is in {}.", path.display()))?;
                }
                _ if reader.json => reader.tell(&made, String::new)?,
                _ => text(&format!("{done}\nIt is shown this once:\n\n  {}\n", made.token))?,
            }
        }
        TokenCommand::List => {
            let all = open().await?.ask(ListTokens {}).await?;
            reader.tell(&all, || list(&all, now_ms()))?;
        }
        TokenCommand::Revoke { id } => {
            let revoked = open().await?.ask(RevokeToken { id }).await?;
            reader.tell(&revoked, || format!("Token {id} is worthless now."))?;
        }
    }
    Ok(Ended::Well)
}

fn list(all: &TokenList, now_ms: u64) -> String {
    if all.tokens.is_empty() {
        return "There is no token. `pillarbox token add` makes one.".into();
    }
    let mut rows = table(&["Token", "Role", "Tenant", "Label", "Made", "Revoked"], &[0, 1]);
    for token in &all.tokens {
        let tenant = token.tenant.clone().unwrap_or_else(|| "(all)".into());
        let revoked = token.revoked_at.map_or_else(String::new, |at| at.ago(now_ms));
        let (id, role, made) = (token.id.to_string(), token.role.name().into(), token.created_at.ago(now_ms));
        rows.add_row([id, role, tenant, token.label.clone(), made, revoked]);
    }
    drawn(&rows)
}
