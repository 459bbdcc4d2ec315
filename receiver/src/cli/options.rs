//! What can be set, as flags, as variables and as keys of a file: one list for all three. A flag goes over a variable,
//! that over the file, that over the default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Deserializer};

use super::target::is_postgres;
use super::{CliError, Result};
use crate::moment::Span;
use crate::serve::{Limits, MetricsAccess, ReuseStatus, ServeSettings, TlsFiles};

/// The store if none is named.
pub(super) const DEFAULT_STORE: &str = "pillarbox.db";
/// The file of the current directory that is read if none is named.
const DEFAULT_FILE: &str = "pillarbox.toml";

/// How logs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// For programs: a JSON object on each line
    Json,
}

/// Everything that can be set. What is `None` was not.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Options {
    /// Address and port to listen on [default: 127.0.0.1:8080]
    #[arg(long, env = "PILLARBOX_LISTEN", value_name = "ADDRESS")]
    pub(super) listen: Option<SocketAddr>,
    /// A SQLite file, or postgres://user@host/database [default: pillarbox.db]
    #[arg(long, env = "PILLARBOX_STORE", hide_env_values = true)]
    pub(super) store: Option<String>,
    /// The kinds file: what records are, by number and name
    #[arg(long, env = "PILLARBOX_KINDS", value_name = "FILE")]
    pub(super) kinds: Option<PathBuf>,
    /// Speak TLS with this certificate chain, in PEM
    #[arg(long, env = "PILLARBOX_TLS_CERT", value_name = "FILE")]
    pub(super) tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, env = "PILLARBOX_TLS_KEY", value_name = "FILE")]
    pub(super) tls_key: Option<PathBuf>,
    /// How long a client's Idempotency-Key is remembered [default: 7d]
    #[arg(long, env = "PILLARBOX_KEY_RETENTION", value_name = "SPAN")]
    pub(super) key_retention: Option<Span>,
    /// What a client is told that uses a key for another payload: 409 or 422 [default: 409]
    #[arg(long, env = "PILLARBOX_REUSE_STATUS", value_name = "STATUS", hide_possible_values = true)]
    #[serde(deserialize_with = "word")]
    pub(super) reuse_status: Option<ReuseStatus>,
    /// Who may read /metrics: everybody (open), or who has a viewer's token (token) [default: open]
    #[arg(long, env = "PILLARBOX_METRICS", value_name = "WHO", hide_possible_values = true)]
    #[serde(deserialize_with = "word")]
    pub(super) metrics: Option<MetricsAccess>,
    /// How the log is written to standard error: text or json [default: text]
    #[arg(long, env = "PILLARBOX_LOG_FORMAT", value_name = "FORMAT", hide_possible_values = true)]
    #[serde(deserialize_with = "word")]
    pub(super) log_format: Option<LogFormat>,
    /// What is logged: error, warn, info, debug or trace, also for one part as in pillarbox_receiver=debug [default: info]
    #[arg(long, env = "PILLARBOX_LOG", value_name = "LEVEL")]
    pub(super) log: Option<String>,
    /// Connections at a time; more wait [default: 900]
    #[arg(long, env = "PILLARBOX_CONNECTIONS", value_name = "NUMBER", help_heading = "Limits")]
    pub(super) connections: Option<usize>,
    /// For the head of a request, and for how long a connection may be idle [default: 15s]
    #[arg(long, env = "PILLARBOX_HEADER_TIMEOUT", value_name = "SPAN", help_heading = "Limits")]
    pub(super) header_timeout: Option<Span>,
    /// For the body of a request [default: 30s]
    #[arg(long, env = "PILLARBOX_BODY_TIMEOUT", value_name = "SPAN", help_heading = "Limits")]
    pub(super) body_timeout: Option<Span>,
    /// For a client to take a piece of an answer [default: 30s]
    #[arg(long, env = "PILLARBOX_WRITE_TIMEOUT", value_name = "SPAN", help_heading = "Limits")]
    pub(super) write_timeout: Option<Span>,
    /// For the store to do one thing [default: 20s]
    #[arg(long, env = "PILLARBOX_STORE_TIMEOUT", value_name = "SPAN", help_heading = "Limits")]
    pub(super) store_timeout: Option<Span>,
    /// For what is in flight when the receiver stops [default: 30s]
    #[arg(long, env = "PILLARBOX_STOP_TIMEOUT", value_name = "SPAN", help_heading = "Limits")]
    pub(super) stop_timeout: Option<Span>,
    /// Bytes of a client's record [default: 65535]
    #[arg(long, env = "PILLARBOX_RECORD_MAX", value_name = "BYTES", help_heading = "Limits")]
    pub(super) record_max: Option<usize>,
    /// How long a request waits for another one with its key [default: 2s]
    #[arg(long, env = "PILLARBOX_KEY_WAIT", value_name = "SPAN", help_heading = "Limits")]
    pub(super) key_wait: Option<Span>,
    /// How long a request has its key for itself, should the receiver crash [default: 60s]
    #[arg(long, env = "PILLARBOX_KEY_LEASE", value_name = "SPAN", help_heading = "Limits")]
    pub(super) key_lease: Option<Span>,
}

/// A value that is one of a few words, or of a few numbers.
fn word<'de, D: Deserializer<'de>, T: ValueEnum>(from: D) -> std::result::Result<Option<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Number(u64),
    }
    let text = match Written::deserialize(from) {
        Ok(Written::Text(text)) => Some(text),
        Ok(Written::Number(number)) => Some(number.to_string()),
        Err(_) => None,
    };
    let found = text.and_then(|text| T::from_str(&text, false).ok());
    found.map(Some).ok_or_else(|| {
        let names = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<String> = names.map(|name| name.get_name().to_owned()).collect();
        serde::de::Error::custom(format!("it is one of {}", names.join(", ")))
    })
}

impl Options {
    /// Reads the file of this name; without a name the one of the current directory, if it is there.
    pub(super) fn load(named: Option<&Path>) -> Result<Self> {
        let path = match named {
            Some(path) => path,
            None if Path::new(DEFAULT_FILE).exists() => Path::new(DEFAULT_FILE),
            None => return Ok(Self::default()),
        };
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| CliError::Usage(format!("cannot read {name}: {error}")))?;
        let options = Self::parse(&text).map_err(|why| CliError::Usage(format!("{name}: {why}")))?;
        Ok(options.beside(path))
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        // No line of the file is repeated: there may be a password in it.
        let table: toml::Table = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            format!("line {} is no TOML: {}", before.matches('\n').count() + 1, error.message())
        })?;
        let mut options = Self::default();
        for (key, value) in table {
            let one = toml::Table::from_iter([(key.clone(), value)]);
            let read: Self = one.try_into().map_err(|error: toml::de::Error| match error.message() {
                why if why.starts_with("unknown field") => {
                    format!("there is no key {key:?}; `pillarbox serve --help` has them all, as flags")
                }
                why => format!("the key {key:?} cannot be used: {why}"),
            })?;
            options = options.over(read);
        }
        Ok(options)
    }

    /// Paths in a file are meant from where the file is.
    fn beside(self, file: &Path) -> Self {
        let directory = file.parent().unwrap_or(Path::new(""));
        let path = |path: Option<PathBuf>| path.map(|path| directory.join(path));
        let store = self.store.map(|store| match is_postgres(&store) {
            true => store,
            false => directory.join(store).display().to_string(),
        });
        Self {
            store,
            kinds: path(self.kinds),
            tls_cert: path(self.tls_cert),
            tls_key: path(self.tls_key),
            ..self
        }
    }

    /// These, and the others where nothing is set here.
    pub(super) fn over(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            store: self.store.or(other.store),
            kinds: self.kinds.or(other.kinds),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            key_retention: self.key_retention.or(other.key_retention),
            reuse_status: self.reuse_status.or(other.reuse_status),
            metrics: self.metrics.or(other.metrics),
            log_format: self.log_format.or(other.log_format),
            log: self.log.or(other.log),
            connections: self.connections.or(other.connections),
            header_timeout: self.header_timeout.or(other.header_timeout),
            body_timeout: self.body_timeout.or(other.body_timeout),
            write_timeout: self.write_timeout.or(other.write_timeout),
            store_timeout: self.store_timeout.or(other.store_timeout),
            stop_timeout: self.stop_timeout.or(other.stop_timeout),
            record_max: self.record_max.or(other.record_max),
            key_wait: self.key_wait.or(other.key_wait),
            key_lease: self.key_lease.or(other.key_lease),
        }
    }

    /// The same for the server, with defaults for what is not set.
    pub(super) fn settings(&self) -> Result<ServeSettings> {
        let default = ServeSettings::default();
        let limits = Limits::default();
        let span = |set: Option<Span>, default| set.map_or(default, |span| Duration::from_millis(span.0));
        let tls = match (self.tls_cert.clone(), self.tls_key.clone()) {
            (Some(cert), Some(key)) => Some(TlsFiles { cert, key }),
            (None, None) => None,
            _ => {
                let sentence = "TLS takes both: a certificate (tls-cert) and its private key (tls-key)";
                return Err(CliError::Usage(sentence.into()));
            }
        };
        if self.connections == Some(0) {
            return Err(CliError::Usage("connections: a receiver needs at least one".into()));
        }
        Ok(ServeSettings {
            listen: self.listen.unwrap_or(default.listen),
            tls,
            key_retention: span(self.key_retention, default.key_retention),
            reuse_status: self.reuse_status.unwrap_or(default.reuse_status),
            metrics_access: self.metrics.unwrap_or(default.metrics_access),
            limits: Limits {
                connections: self.connections.unwrap_or(limits.connections),
                header_timeout: span(self.header_timeout, limits.header_timeout),
                body_timeout: span(self.body_timeout, limits.body_timeout),
                write_timeout: span(self.write_timeout, limits.write_timeout),
                store_timeout: span(self.store_timeout, limits.store_timeout),
                stop_timeout: span(self.stop_timeout, limits.stop_timeout),
                record_max: self.record_max.unwrap_or(limits.record_max),
                key_wait: span(self.key_wait, limits.key_wait),
                key_lease: span(self.key_lease, limits.key_lease),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// A value for every key.
    const ALL: &str = "
        listen = '127.0.0.1:1'
        store = 'x.db'
        kinds = 'kinds.toml'
        tls-cert = 'cert.pem'
        tls-key = 'key.pem'
        key-retention = '1d'
        reuse-status = 422
        metrics = 'token'
        log-format = 'json'
        log = 'debug'
        connections = 1
        header-timeout = '1s'
        body-timeout = '1s'
        write-timeout = '1s'
        store-timeout = '1s'
        stop-timeout = '1s'
        record-max = 1
        key-wait = '1s'
        key-lease = '1s'
    ";

    #[test]
    fn every_flag_has_a_variable_and_a_key_of_its_name() {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            _options: Options,
        }
        let file: toml::Table = toml::from_str(ALL).unwrap();
        let mut flags = 0;
        for flag in Flags::command().get_arguments() {
            let Some(long) = flag.get_long().filter(|long| *long != "help") else { continue };
            flags += 1;
            let variable = format!("PILLARBOX_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(flag.get_env().and_then(|env| env.to_str()), Some(&*variable), "--{long}");
            assert!(file.contains_key(long), "no key {long}");
        }
        assert_eq!(flags, file.len());
    }

    #[test]
    fn every_key_is_kept_when_it_goes_over_or_under_nothing() {
        let all = Options::parse(ALL).unwrap();
        assert_eq!(all.clone().over(Options::default()), all);
        assert_eq!(Options::default().over(all.clone()), all);
        // What is set wins over what would change everything.
        let other = Options { listen: "127.0.0.1:2".parse().ok(), ..Options::default() };
        assert_eq!(other.over(all.clone()).listen, "127.0.0.1:2".parse().ok());
        assert!(!format!("{all:?}").contains("None"), "{all:?}");
    }

    #[test]
    fn what_is_wrong_is_named_and_not_repeated() {
        let wrong = [
            ("lisen = 'x'", "there is no key \"lisen\""),
            ("listen = 'here'", "\"listen\" cannot be used"),
            ("key-retention = '7'", "\"key-retention\" cannot be used: \"7\" is no span"),
            ("reuse-status = 200", "\"reuse-status\" cannot be used: it is one of 409, 422"),
            ("connections = -1", "\"connections\" cannot be used"),
            ("\n\nstore = 'postgres://u:hunter2@db", "line 3 is no TOML"),
        ];
        for (text, expected) in wrong {
            let error = Options::parse(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn paths_are_meant_from_where_the_file_is() {
        let options = Options::parse(ALL).unwrap().beside(Path::new("/etc/pillarbox/pillarbox.toml"));
        assert_eq!(options.store.as_deref(), Some("/etc/pillarbox/x.db"));
        assert_eq!(options.tls_key.as_deref(), Some(Path::new("/etc/pillarbox/key.pem")));
        let by_url = Options { store: Some("postgres://db/x".into()), ..Options::default() };
        assert_eq!(by_url.beside(Path::new("/etc/x")).store.as_deref(), Some("postgres://db/x"));
    }
}
