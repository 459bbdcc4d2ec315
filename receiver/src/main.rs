//! The program `pillarbox`: for now it serves.

use clap::Parser;
use pillarbox_receiver::kinds::Kinds;
use pillarbox_receiver::serve::{self, ServeSettings};
use pillarbox_receiver::store;

#[derive(Parser)]
enum Command {
    Serve {
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: std::net::SocketAddr,
        #[arg(long, default_value = "pillarbox.db")]
        store: String,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Command::Serve { listen, store } = Command::parse();
    let store = store::open(&store).await?;
    let settings = ServeSettings { listen, ..ServeSettings::default() };
    serve::run(settings, store, Kinds::default()).await
}
