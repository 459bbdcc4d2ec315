//! Asks a receiver over its admin API: any request of `admin.rs`, written once here.

use std::path::Path;
use std::time::Duration;

use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::target::TargetArgs;
use super::{CliError, Result, secret_file};
use crate::admin::{AdminError, Method, Request};

/// A receiver that does not answer for so long is not there.
const PATIENCE: Duration = Duration::from_secs(60);
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A receiver, and what it believes us by.
pub(super) struct Remote {
    client: Client,
    server: Url,
    token: String,
}

/// What a receiver says when it did not do what it was asked.
#[derive(Deserialize)]
struct Problem {
    detail: String,
}

impl Remote {
    pub(super) fn new(server: &str, args: &TargetArgs) -> Result<Self> {
        let server = parse(server)?;
        let token = token(args.token_file.as_deref())?;
        if server.scheme() == "http" && !is_this_machine(&server) && !args.insecure {
            let sentence = format!(
                "{server} would get the token over plain HTTP, where others can read it: use https, or --insecure in a network \
                 that you trust"
            );
            return Err(CliError::Usage(sentence));
        }
        let mut builder =
            Client::builder().timeout(PATIENCE).connect_timeout(CONNECT_WITHIN).redirect(no_redirect());
        if let Some(path) = &args.ca {
            let wrong = |why: String| CliError::Usage(format!("{} cannot be used: {why}", path.display()));
            let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
            let certificates = reqwest::Certificate::from_pem_bundle(&pem)
                .map_err(|_| wrong("it holds no certificate in PEM".into()))?;
            if certificates.is_empty() {
                return Err(wrong("it holds no certificate in PEM".into()));
            }
            builder = certificates.into_iter().fold(builder, reqwest::ClientBuilder::add_root_certificate);
        }
        let client = builder.build().map_err(|error| CliError::Refused(chain(&error)))?;
        Ok(Self { client, server, token })
    }

    /// Asks, and gives the answer. If the future is dropped, it may have been done all the same.
    pub(super) async fn ask<R: Request>(&self, request: R) -> Result<R::Answer> {
        let mut fields = match serde_json::to_value(request) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        fields.retain(|_, value| !value.is_null());
        let url = self.url(R::PATH, &mut fields);
        let asked = match R::METHOD {
            Method::Get => self.client.get(url).query(&pairs(fields)),
            Method::Post => self.client.post(url).json(&fields),
            Method::Delete => self.client.delete(url),
        };
        let answer = asked.bearer_auth(&self.token).send().await.map_err(|error| self.unreachable(&error))?;
        match answer.status() {
            status if status.is_success() => answer.json().await.map_err(|error| {
                let why = chain(&error);
                CliError::Refused(format!("{} answers what this program does not know: {why}", self.server))
            }),
            status => Err(self.refusal(status, answer).await),
        }
    }

    /// Where a request goes; the fields that are in the path are taken out.
    fn url(&self, path: &str, fields: &mut Map<String, Value>) -> Url {
        let mut url = self.server.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty();
            for segment in path.split('/').skip(1) {
                let field = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
                match field.and_then(|name| fields.remove(name)) {
                    Some(value) => segments.push(&plain(&value)),
                    None => segments.push(segment),
                };
            }
        }
        url
    }

    fn unreachable(&self, error: &reqwest::Error) -> CliError {
        let why = chain(error);
        CliError::Refused(format!("{} cannot be reached: {why}", self.server))
    }

    async fn refusal(&self, status: StatusCode, answer: Response) -> CliError {
        let problem = answer.json::<Problem>().await.map(|problem| problem.detail);
        let Ok(detail) = problem else {
            let server = &self.server;
            return CliError::Refused(format!("{server} answers {status}: is a receiver behind it?"));
        };
        match status {
            StatusCode::BAD_REQUEST => AdminError::Invalid(detail).into(),
            StatusCode::UNAUTHORIZED => CliError::Refused(format!(
                "{} does not take this token: it is not one of its own, or it was revoked",
                self.server
            )),
            StatusCode::SERVICE_UNAVAILABLE => {
                CliError::Refused(format!("the store of {} is not available: {detail}", self.server))
            }
            _ => CliError::Refused(detail),
        }
    }
}

/// Following one would take the token to where it was not meant for.
fn no_redirect() -> reqwest::redirect::Policy {
    reqwest::redirect::Policy::none()
}

fn parse(server: &str) -> Result<Url> {
    // What is wrong is not repeated: there may be a password in it.
    let wrong = || {
        let sentence = "--server wants the address of a receiver, such as https://receiver.example, and no name or password in it";
        CliError::Usage(sentence.into())
    };
    let url = Url::parse(server).map_err(|_| wrong())?;
    let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    let is_http = matches!(url.scheme(), "http" | "https") && url.has_host();
    (is_plain && is_http).then_some(url).ok_or_else(wrong)
}

fn is_this_machine(server: &Url) -> bool {
    match server.host() {
        Some(url_host) => match url_host.to_string().trim_matches(['[', ']']).parse::<std::net::IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => server.host_str() == Some("localhost"),
        },
        None => false,
    }
}

fn token(file: Option<&Path>) -> Result<String> {
    let token = match file {
        Some(file) => secret_file::read(file)?,
        None => std::env::var("PILLARBOX_TOKEN").unwrap_or_default().trim().to_owned(),
    };
    // It is not repeated. A header cannot hold everything.
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    is_token.then_some(token).ok_or_else(|| {
        let sentence =
            "a receiver wants a token: name a file with --token-file, or set PILLARBOX_TOKEN. `pillarbox token add` makes one";
        CliError::Usage(sentence.into())
    })
}

/// As it is written in a path or a query.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn pairs(fields: Map<String, Value>) -> Vec<(String, String)> {
    fields.into_iter().map(|(name, value)| (name, plain(&value))).collect()
}

/// What went wrong, and why, and why that: the first of it alone says little.
fn chain(error: &reqwest::Error) -> String {
    let mut reasons = Vec::new();
    let mut next = std::error::Error::source(error);
    while let Some(reason) = next {
        reasons.push(reason.to_string());
        next = reason.source();
    }
    reasons.dedup();
    // The last one is the cause; those before it say where.
    reasons.pop().unwrap_or_else(|| "it did not answer".into())
}
