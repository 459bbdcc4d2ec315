//! `pillarbox check`: what was verified, and what is wrong, in sentences.

use super::output::{Progress, Reader, drawn, grouped, table, wrapped};
use super::target::{StoreArgs, shown, store_of};
use super::{Ended, Result};
use crate::check::{CheckReport, check};

/// Verify that books and log agree, and that nothing is missing or stored twice
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It reads the whole log. The receiver may go on meanwhile; what it changes is looked at again. The exit status is 1 if \
something is wrong.

Examples:
  pillarbox check
  pillarbox check --store /backup/pillarbox-2026-03-01.db --json")]
pub(super) struct CheckArgs {
    #[command(flatten)]
    at: StoreArgs,
    #[command(flatten)]
    reader: Reader,
}

pub(super) async fn run(args: CheckArgs) -> Result<Ended> {
    let (name, store) = store_of(args.at).await?;
    let mut progress = Progress::new();
    let report = check(&*store, |so_far| {
        progress.at(|| format!("{} records, {} devices", grouped(so_far.records), grouped(so_far.devices)));
    })
    .await?;
    drop(progress);
    args.reader.tell(&report, || words(&report, &shown(&name)))?;
    Ok(if report.is_sound() { Ended::Well } else { Ended::FoundWrong })
}

fn words(report: &CheckReport, store: &str) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        text += &wrapped(finding, "  * ", "    ");
    }
    if report.more_findings > 0 {
        text += &format!("  * and {} more\n", grouped(report.more_findings));
    }
    if !report.is_sound() {
        let advice = "Stop the receiver and keep the store as it is: what came since the last backup is only there. Then put back a backup in \
                      which nothing is wrong: devices repeat what they explained, and send what they still have.";
        text = format!("{store} is damaged:\n\n{text}\n{}\n", wrapped(advice, "", ""));
    } else {
        text = format!("{store} is sound.\n\n");
    }
    let mut rows = table(&["Checked", "", "That"], &[0, 1]);
    let checked = [
        ("shards", report.shards, "their places have no gaps"),
        ("records in the log", report.records, "each can be read, and none is stored twice under one key"),
        ("of these from clients", report.client_records, "each can be read"),
        ("records kept aside", report.asides, "each can be read"),
        ("devices", report.devices, "their books can be read"),
        ("lanes", report.lanes, "what the books call received is stored, and is found by its key"),
    ];
    for (what, count, that) in checked {
        rows.add_row([what.to_owned(), grouped(count), that.to_owned()]);
    }
    if report.busy_lanes > 0 {
        let row = [
            "of these too busy",
            &grouped(report.busy_lanes),
            "nothing can be said: check again when less comes",
        ];
        rows.add_row(row);
    }
    text + &drawn(&rows)
}
