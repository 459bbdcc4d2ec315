//! `pillarbox device`: lets devices in and out, and shows what became of their records.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use pillarbox::DeviceId;

use super::device_words::{ledger, list};
use super::output::Reader;
use super::secret_file::{self, SecretFile};
use super::target::{Given, Missing, Target, TargetArgs};
use super::{CliError, Ended, Result};
use crate::admin::{
    AddDevice, Changed, CloseIncarnation, DevicePage, FenceIncarnation, IncarnationName, ListDevices,
    NewSecret, RevokeDevice, RotateDevice, SecretText, ShowDevice, Tenant,
};
use crate::moment::now_ms;

/// Let devices in and out, and see what became of their records
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pillarbox device add meter-1
  pillarbox device list
  pillarbox device show meter-1")]
pub(super) struct DeviceArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    reader: Reader,
    #[command(subcommand)]
    command: DeviceCommand,
}

#[derive(Debug, Subcommand)]
enum DeviceCommand {
    /// Let a device in: makes its secret, and tells it this once
    #[command(after_help = "\
Examples:
  pillarbox device add meter-1
  pillarbox device add meter-1 --tenant north --secret-file meter-1.secret
  pillarbox device add meter-1 --secret-from factory/meter-1.secret
  make-secret | pillarbox device add meter-1 --secret-from -")]
    Add {
        /// Its name: 1 to 32 of A-Z a-z 0-9 _ -
        device: DeviceId,
        /// Whose it is [default: default]
        #[arg(long)]
        tenant: Option<Tenant>,
        #[command(flatten)]
        secret: SecretArgs,
    },
    /// List devices: those first that need attention
    #[command(after_help = "\
Examples:
  pillarbox device list
  pillarbox device list meter --tenant north
  pillarbox device list --problems
  pillarbox device list --json | jq '.devices[] | select(.unexplained > 0) | .device'")]
    List {
        /// Only those whose name contains this
        containing: Option<String>,
        /// Only those of this tenant
        #[arg(long)]
        tenant: Option<Tenant>,
        /// Only those that need attention
        #[arg(long)]
        problems: bool,
    },
    /// Show what became of every record of a device, and what to do
    #[command(after_help = "\
Examples:
  pillarbox device show meter-1
  pillarbox device show meter-1 --json | jq .totals.unexplained")]
    Show {
        /// Its name
        device: DeviceId,
    },
    /// Let a device in no more, for ever; what it sent stays
    #[command(after_help = "\
Examples:
  pillarbox device revoke meter-1")]
    Revoke {
        /// Its name
        device: DeviceId,
    },
    /// Give a device a new secret; the old one is good until the new one is first used
    #[command(after_help = "\
Examples:
  pillarbox device rotate meter-1
  pillarbox device rotate meter-1 --secret-file meter-1.secret")]
    Rotate {
        /// Its name
        device: DeviceId,
        #[command(flatten)]
        secret: SecretArgs,
    },
    /// Quarantine all that comes under an incarnation; its device is told to take a new one
    #[command(after_help = "\
When two devices have one name, or one was set back to an old image, its keys are disputed. What comes under a fenced \
incarnation is kept aside (`pillarbox records export --asides`) and changes no books.

Examples:
  pillarbox device fence meter-1 9f3c1a77")]
    Fence {
        /// Its name
        device: DeviceId,
        /// The incarnation, as `device show` names it
        incarnation: IncarnationName,
    },
    /// Expect nothing more of an incarnation: its device is gone, or its flash is
    #[command(after_help = "\
What is pending in it counts as given up and alarms nobody. Should it be heard again, it is open again.

Examples:
  pillarbox device close meter-1 9f3c1a77")]
    Close {
        /// Its name
        device: DeviceId,
        /// The incarnation, as `device show` names it
        incarnation: IncarnationName,
    },
}

/// Secrets come from files and go to files, or to the terminal once: an argument would stay in the shell's history.
#[derive(Clone, Debug, Default, clap::Args)]
struct SecretArgs {
    /// Write the secret to this new file, for its owner only, instead of showing it
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Take the secret that the device has already: 64 hexadecimal digits in a file, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "secret_file")]
    secret_from: Option<PathBuf>,
}

impl SecretArgs {
    fn given(&self) -> Result<Option<SecretText>> {
        let read = |path: &PathBuf| {
            let text = secret_file::read(path)?;
            let wrong = |why: String| CliError::Usage(format!("{}: {why}", path.display()));
            text.parse::<SecretText>().map_err(wrong)
        };
        self.secret_from.as_ref().map(read).transpose()
    }
}

pub(super) async fn run(args: DeviceArgs, given: Given) -> Result<Ended> {
    let DeviceArgs { target, reader, command } = args;
    let missing = match command {
        DeviceCommand::Add { .. } => Missing::Make,
        _ => Missing::Refuse,
    };
    let open = || Target::open(target, given, missing);
    match command {
        DeviceCommand::Add { device, tenant, secret } => {
            let (known, file) = (secret.given()?, create(secret.secret_file.as_deref())?);
            let request = AddDevice { device, tenant, secret: known };
            let added = open().await?.ask(request).await?;
            let done = format!("{} of tenant {} may come in.", added.device, added.tenant);
            tell_secret(reader, &added, &done, &secret, file)?;
        }
        DeviceCommand::Rotate { device, secret } => {
            let (known, file) = (secret.given()?, create(secret.secret_file.as_deref())?);
            let rotated = open().await?.ask(RotateDevice { device, secret: known }).await?;
            let done = format!(
                "{} has a new secret. The old one is good until the new one is first used.",
                rotated.device
            );
            tell_secret(reader, &rotated, &done, &secret, file)?;
        }
        DeviceCommand::List { containing, tenant, problems } => {
            let request = ListDevices { containing, tenant, ..ListDevices::default() };
            let mut page = all_devices(&open().await?, request).await?;
            if problems {
                page.devices.retain(|device| !device.problems.is_empty());
            }
            reader.tell(&page, || list(&page.devices, now_ms()))?;
        }
        DeviceCommand::Show { device } => {
            let shown = open().await?.ask(ShowDevice { device }).await?;
            reader.tell(&shown, || ledger(&shown, now_ms()))?;
        }
        DeviceCommand::Revoke { device } => {
            let changed = open().await?.ask(RevokeDevice { device }).await?;
            tell_changed(reader, &changed, "may not come in any more. What it sent stays.")?;
        }
        DeviceCommand::Fence { device, incarnation } => {
            let changed = open().await?.ask(FenceIncarnation { device, incarnation }).await?;
            let does =
                "is fenced: what comes under it is kept aside, and its device is told to take a new one.";
            tell_changed(reader, &changed, does)?;
        }
        DeviceCommand::Close { device, incarnation } => {
            let changed = open().await?.ask(CloseIncarnation { device, incarnation }).await?;
            tell_changed(reader, &changed, "is closed: nothing more is expected of it.")?;
        }
    }
    Ok(Ended::Well)
}

fn create(path: Option<&Path>) -> Result<Option<SecretFile>> {
    path.map(SecretFile::create).transpose()
}

/// The secret goes to its file or to whoever runs the command, and nowhere else.
fn tell_secret(
    reader: Reader,
    told: &NewSecret,
    done: &str,
    args: &SecretArgs,
    file: Option<SecretFile>,
) -> Result<()> {
    let rest = match file {
        Some(file) => {
            file.write(&told.secret.reveal())?;
            let path = args.secret_file.as_deref().unwrap_or(Path::new("")).display();
            format!("Its secret is in {path}.")
        }
        None if args.secret_from.is_some() => "It has the secret that you gave.".to_owned(),
        None => format!("Its secret, which is shown this once:\n\n  {}\n", told.secret.reveal()),
    };
    if reader.json {
        let is_told = args.secret_file.is_none() && args.secret_from.is_none();
        let secret = is_told.then(|| told.secret.reveal());
        let told = serde_json::json!({ "device": told.device, "tenant": told.tenant, "secret": secret });
        return reader.tell(&told, String::new);
    }
    super::output::text(&format!("{done}\n{rest}"))
}

fn tell_changed(reader: Reader, changed: &Changed, does: &str) -> Result<()> {
    reader.tell(changed, || match changed.incarnation {
        Some(incarnation) => format!("{incarnation} of {} {does}", changed.device),
        None => format!("{} {does}", changed.device),
    })
}

async fn all_devices(target: &Target, request: ListDevices) -> Result<DevicePage> {
    let mut all = target.ask(request.clone()).await?;
    while let Some(after) = all.next.take() {
        let page = target.ask(ListDevices { after: Some(after), ..request.clone() }).await?;
        all.devices.extend(page.devices);
        all.next = page.next;
    }
    Ok(all)
}
