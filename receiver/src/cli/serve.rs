//! `pillarbox serve`: puts together what the server needs, and says what a person needs to begin.

use std::io::Write;
use std::path::PathBuf;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::SubscriberBuilder;

use super::options::{DEFAULT_STORE, LogFormat, Options};
use super::target::{Missing, load_kinds, open_store, shown};
use super::{CliError, Ended, Result, output};
use crate::serve::{self, ServeSettings};
use crate::store::{DeviceQuery, Store};

/// Run the receiver
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every flag is also a key of the config file, without its dashes: listen = \"0.0.0.0:8080\". A flag goes over a variable, that \
over the file. Paths in the file are meant from where it is. SIGTERM and Ctrl-C finish what is in flight; a second one breaks it off.

Examples:
  pillarbox serve
  pillarbox serve --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem
  pillarbox serve --kinds kinds.toml --log-format json
  PILLARBOX_STORE=postgres://pillarbox:password@db/fleet pillarbox serve")]
pub(super) struct ServeArgs {
    /// A file with any of the other settings [default: pillarbox.toml, if it is there]
    #[arg(long, env = "PILLARBOX_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

pub(super) async fn run(args: ServeArgs) -> Result<Ended> {
    let options = args.options.over(Options::load(args.config.as_deref())?);
    let settings = options.settings()?;
    start_log(&options)?;
    let kinds = load_kinds(options.kinds.clone())?;
    let name = options.store.as_deref().unwrap_or(DEFAULT_STORE);
    let store = open_store(name, Missing::Make).await?;
    warn_of_strangers(&settings);
    greet(name, &*store, &settings).await?;
    serve::run(settings, store, kinds).await?;
    Ok(Ended::Well)
}

/// Where the store is, and what to do next. Where it listens is said by the server, when it does.
async fn greet(name: &str, store: &dyn Store, settings: &ServeSettings) -> Result<()> {
    let is_empty = store.devices(DeviceQuery { limit: 1, ..DeviceQuery::default() }).await?.is_empty();
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "store: {}", shown(name))?;
    if is_empty {
        let place = if name == DEFAULT_STORE { String::new() } else { " --store ...".into() };
        writeln!(stdout, "no device may come in yet; let one in: pillarbox device add meter-1{place}")?;
    }
    if settings.listen.ip().is_loopback() {
        writeln!(stdout, "only this machine can reach it; --listen 0.0.0.0:8080 is for others too")?;
    }
    Ok(stdout.flush()?)
}

fn warn_of_strangers(settings: &ServeSettings) {
    if settings.tls.is_none() && !settings.listen.ip().is_loopback() {
        tracing::warn!(
            "tokens travel unencrypted unless something in front of this receiver speaks TLS (devices need none): --tls-cert, --tls-key"
        );
    }
}

fn start_log(options: &Options) -> Result<()> {
    let wanted = options.log.as_deref().unwrap_or("info");
    let filter = EnvFilter::try_new(wanted)
        .map_err(|error| CliError::Usage(format!("log: {wanted:?} says no level: {error}")))?;
    let builder = SubscriberBuilder::default().with_env_filter(filter).with_writer(std::io::stderr);
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let started = match options.log_format.unwrap_or_default() {
        LogFormat::Text => builder.with_ansi(is_terminal).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let Err(error) = started {
        output::complain(&format!("warning: nothing is logged: {error}"));
    }
    Ok(())
}
