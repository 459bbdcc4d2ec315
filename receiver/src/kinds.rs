//! A stand-in until the kinds are there.
#[allow(missing_docs)]
#[derive(Clone, Debug, Default)]
pub struct Kinds {}
#[allow(missing_docs)]
pub enum Decoded {
    Json(serde_json::Value),
    Unknown,
    Unreadable(String),
}
#[allow(missing_docs)]
#[derive(Debug)]
pub struct KindsError;
#[allow(missing_docs)]
impl Kinds {
    pub fn load(_: &std::path::Path) -> Result<Self, KindsError> {
        Ok(Self {})
    }
    pub fn name(&self, _: u16) -> Option<&str> {
        None
    }
    pub fn number(&self, text: &str) -> Option<u16> {
        text.parse().ok()
    }
    pub fn decode(&self, _: u16, _: &[u8]) -> Decoded {
        Decoded::Unknown
    }
    pub fn is_readable(&self, _: u16, _: &[u8]) -> bool {
        true
    }
    pub fn check_json(&self, _: u16, _: &serde_json::Value) -> Result<(), String> {
        Ok(())
    }
    pub fn show(&self, kind: u16, body: &[u8]) -> serde_json::Value {
        serde_json::json!({"kind": kind, "hex": hex::encode(body)})
    }
}
impl std::fmt::Display for KindsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("")
    }
}
impl std::error::Error for KindsError {}
