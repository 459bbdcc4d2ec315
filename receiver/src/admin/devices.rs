//! Devices: letting them in and out, their secrets, and their ledgers.

use pillarbox::DeviceId;
use serde::{Deserialize, Serialize};

use super::{AdminError, Asker, Desk, IncarnationName, Method, Request, Result, SecretText, Tenant};
use crate::ledger::{DeviceLedger, Problem, Totals};
use crate::moment::Moment;
use crate::store::{Change, Device, DeviceQuery, Role};

/// Devices of one page, at most.
const PAGE_MAX: u32 = 500;

/// Lets a device in.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddDevice {
    /// Its name.
    pub device: DeviceId,
    /// Whose it is.
    pub tenant: Option<Tenant>,
    /// What it shares with the receiver; a random one is made if there is none.
    pub secret: Option<SecretText>,
}

/// A secret that is told this once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewSecret {
    /// Whose it is.
    pub device: String,
    /// Whose device it is.
    pub tenant: String,
    /// 64 hexadecimal digits.
    pub secret: SecretText,
}

impl Request for AddDevice {
    type Answer = NewSecret;
    const METHOD: Method = Method::Post;
    const PATH: &'static str = "/v1/admin/devices";
    const NEEDS: Role = Role::Admin;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<NewSecret> {
        let asked = self.tenant.map(|tenant| tenant.to_string());
        let tenant = asker.tenant_of(asked)?.unwrap_or_else(|| Tenant::DEFAULT.into());
        let secret = secret_or_random(self.secret)?;
        let change = Change::Add { device: self.device.clone(), tenant: tenant.clone(), secret: secret.0 };
        desk.store.change(change, desk.now_ms).await?;
        Ok(NewSecret { device: self.device.to_string(), tenant, secret })
    }
}

fn secret_or_random(secret: Option<SecretText>) -> Result<SecretText> {
    secret.map_or_else(|| SecretText::random().map_err(AdminError::Unavailable), Ok)
}

/// Some devices, in the order of their names.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListDevices {
    /// Whose name contains this.
    pub containing: Option<String>,
    /// Of this tenant.
    pub tenant: Option<Tenant>,
    /// After this name.
    pub after: Option<String>,
    /// So many at most.
    pub limit: Option<u32>,
}

/// Some devices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DevicePage {
    /// The devices.
    pub devices: Vec<DeviceSummary>,
    /// There are more, after this name.
    pub next: Option<String>,
}

/// A device in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSummary {
    /// Its name.
    pub device: String,
    /// Whose it is.
    pub tenant: String,
    /// When it was let in.
    pub created_at: Moment,
    /// Since when it may not come in any more.
    pub revoked_at: Option<Moment>,
    /// When it was last heard.
    pub heard_at: Option<Moment>,
    /// What it adds up to.
    #[serde(flatten)]
    pub totals: Totals,
    /// What needs somebody's attention, the worst first.
    pub problems: Vec<Problem>,
}

impl From<DeviceLedger> for DeviceSummary {
    fn from(ledger: DeviceLedger) -> Self {
        let DeviceLedger { device, tenant, created_at, revoked_at, heard_at, totals, problems, .. } = ledger;
        Self { device, tenant, created_at, revoked_at, heard_at, totals, problems }
    }
}

impl Request for ListDevices {
    type Answer = DevicePage;
    const METHOD: Method = Method::Get;
    const PATH: &'static str = "/v1/admin/devices";
    const NEEDS: Role = Role::Viewer;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<DevicePage> {
        let limit = self.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
        let query = DeviceQuery {
            containing: self.containing,
            tenant: asker.tenant_of(self.tenant.map(|tenant| tenant.to_string()))?,
            after: self.after,
            limit,
        };
        let found = desk.store.devices(query).await?;
        let is_full = found.len() >= limit as usize;
        let next = found.last().filter(|_| is_full).map(|device| device.name.clone());
        let mut devices = Vec::with_capacity(found.len());
        for device in found {
            devices.push(DeviceLedger::load(&*desk.store, device).await?.into());
        }
        Ok(DevicePage { devices, next })
    }
}

/// The device of this name, if it is there for the asker.
pub(super) async fn find(desk: &Desk, asker: &Asker, name: &DeviceId) -> Result<Device> {
    let found = desk.store.device(name).await?.filter(|device| asker.sees(&device.tenant));
    found.ok_or_else(|| AdminError::NotFound(format!("there is no device {name}")))
}

/// The ledger of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShowDevice {
    /// Its name.
    pub device: DeviceId,
}

impl Request for ShowDevice {
    type Answer = DeviceLedger;
    const METHOD: Method = Method::Get;
    const PATH: &'static str = "/v1/admin/devices/{device}";
    const NEEDS: Role = Role::Viewer;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<DeviceLedger> {
        let device = find(desk, asker, &self.device).await?;
        Ok(DeviceLedger::load(&*desk.store, device).await?)
    }
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// To which device.
    pub device: String,
    /// To which of its incarnations.
    pub incarnation: Option<IncarnationName>,
    /// What: `revoked`, `fenced` or `closed`.
    pub did: String,
}

/// Lets a device in no more.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevokeDevice {
    /// Its name.
    pub device: DeviceId,
}

impl Request for RevokeDevice {
    type Answer = Changed;
    const METHOD: Method = Method::Post;
    const PATH: &'static str = "/v1/admin/devices/{device}/revoke";
    const NEEDS: Role = Role::Admin;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<Changed> {
        find(desk, asker, &self.device).await?;
        desk.store.change(Change::Revoke(self.device.clone()), desk.now_ms).await?;
        Ok(Changed { device: self.device.to_string(), incarnation: None, did: "revoked".into() })
    }
}

/// Gives a device a new secret; the old one is good until the new one is used.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotateDevice {
    /// Its name.
    pub device: DeviceId,
    /// The new secret; a random one is made if there is none.
    pub secret: Option<SecretText>,
}

impl Request for RotateDevice {
    type Answer = NewSecret;
    const METHOD: Method = Method::Post;
    const PATH: &'static str = "/v1/admin/devices/{device}/rotate";
    const NEEDS: Role = Role::Admin;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<NewSecret> {
        let device = find(desk, asker, &self.device).await?;
        if device.revoked_ms.is_some() {
            let sentence = format!("{} is revoked; add it under another name", self.device);
            return Err(AdminError::Refused(sentence));
        }
        let secret = secret_or_random(self.secret)?;
        desk.store.change(Change::Rotate(self.device, secret.0), desk.now_ms).await?;
        Ok(NewSecret { device: device.name, tenant: device.tenant, secret })
    }
}

/// Takes nothing of an incarnation into the books any more.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FenceIncarnation {
    /// Whose.
    pub device: DeviceId,
    /// Which.
    pub incarnation: IncarnationName,
}

impl Request for FenceIncarnation {
    type Answer = Changed;
    const METHOD: Method = Method::Post;
    const PATH: &'static str = "/v1/admin/devices/{device}/incarnations/{incarnation}/fence";
    const NEEDS: Role = Role::Admin;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<Changed> {
        find(desk, asker, &self.device).await?;
        desk.store.change(Change::Fence(self.device.clone(), self.incarnation.0), desk.now_ms).await?;
        let incarnation = Some(self.incarnation);
        Ok(Changed { device: self.device.to_string(), incarnation, did: "fenced".into() })
    }
}

/// Expects nothing more of an incarnation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloseIncarnation {
    /// Whose.
    pub device: DeviceId,
    /// Which.
    pub incarnation: IncarnationName,
}

impl Request for CloseIncarnation {
    type Answer = Changed;
    const METHOD: Method = Method::Post;
    const PATH: &'static str = "/v1/admin/devices/{device}/incarnations/{incarnation}/close";
    const NEEDS: Role = Role::Admin;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<Changed> {
        find(desk, asker, &self.device).await?;
        desk.store.change(Change::GiveUp(self.device.clone(), self.incarnation.0), desk.now_ms).await?;
        let incarnation = Some(self.incarnation);
        Ok(Changed { device: self.device.to_string(), incarnation, did: "closed".into() })
    }
}
