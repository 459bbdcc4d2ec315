//! The program `pillarbox`: for now it serves.

use std::path::Path;
use std::sync::Arc;

use clap::Parser;
use pillarbox_receiver::inspect::Inspect;
use pillarbox_receiver::kinds::Kinds;
use pillarbox_receiver::serve::{self, ServeSettings};
use pillarbox_receiver::store::sqlite::SqliteStore;

#[derive(Parser)]
enum Command {
    Inspect(Inspect),
    Serve {
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: std::net::SocketAddr,
        #[arg(long, default_value = "pillarbox.db")]
        store: String,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<std::process::ExitCode> {
    let (listen, store) = match Command::parse() {
        Command::Serve { listen, store } => (listen, store),
        Command::Inspect(inspect) => return inspect.run(),
    };
    let store = SqliteStore::open(Path::new(&store))?;
    let settings = ServeSettings { listen, ..ServeSettings::default() };
    serve::run(settings, Arc::new(store), Kinds::default()).await?;
    Ok(std::process::ExitCode::SUCCESS)
}
