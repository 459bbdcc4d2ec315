//! Who may speak for a device, and who may answer it: tags with keys that are derived from the device's
//! secret.

use core::fmt;

use hmac::{
    Hmac, Mac,
    digest::{Key, KeyInit},
};
use sha2::Sha256;

/// Bytes of a tag.
pub const TAG_LEN: usize = 16;

/// What a device and its receiver share: 32 random bytes, used for nothing but the keys of the tags.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// The secret with these bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes, for a receiver that has to keep them.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The keys of both directions.
#[derive(Clone)]
pub struct TagKeys {
    request: [u8; 32],
    answer: [u8; 32],
}

impl TagKeys {
    /// Derives the keys.
    pub fn new(secret: &Secret) -> Self {
        let derive = |name: &[u8]| mac(&secret.0, name, &[]).finalize().into_bytes().into();
        Self { request: derive(b"pillarbox.v1.request"), answer: derive(b"pillarbox.v1.answer") }
    }

    /// The tag of a batch, from everything before it.
    pub fn batch_tag(&self, bytes: &[u8]) -> [u8; TAG_LEN] {
        tag(mac(&self.request, &[], bytes))
    }

    /// The tag of an answer to the batch with that tag, from everything before it.
    pub fn answer_tag(&self, batch_tag: &[u8; TAG_LEN], bytes: &[u8]) -> [u8; TAG_LEN] {
        tag(mac(&self.answer, batch_tag, bytes))
    }

    /// Whether the tag at an envelope's end is right; compared in constant time. Gives the tag.
    pub fn verify_batch(&self, envelope: &[u8]) -> Option<[u8; TAG_LEN]> {
        let (bytes, tag) = envelope.split_last_chunk::<TAG_LEN>()?;
        mac(&self.request, &[], bytes).verify_truncated_left(tag).ok()?;
        Some(*tag)
    }

    /// What stands before the tag of an answer to the batch with that tag; `None` if its tag is not right.
    pub fn open_answer<'e>(&self, batch_tag: &[u8; TAG_LEN], envelope: &'e [u8]) -> Option<&'e [u8]> {
        let (bytes, tag) = envelope.split_last_chunk::<TAG_LEN>()?;
        mac(&self.answer, batch_tag, bytes).verify_truncated_left(tag).ok()?;
        Some(bytes)
    }
}

impl fmt::Debug for TagKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TagKeys(..)")
    }
}

// Every tag and every key is one call of this: inlined, each would bring the whole of HMAC along.
#[inline(never)]
fn mac(key: &[u8; 32], before: &[u8], bytes: &[u8]) -> Hmac<Sha256> {
    // A key of a whole block cannot be of the wrong length. HMAC fills shorter ones up with zeros too.
    let mut block = Key::<Hmac<Sha256>>::default();
    block.iter_mut().zip(key).for_each(|(place, byte)| *place = *byte);
    let mut mac = <Hmac<Sha256> as KeyInit>::new(&block);
    mac.update(before);
    mac.update(bytes);
    mac
}

#[inline(never)]
fn tag(mac: Hmac<Sha256>) -> [u8; TAG_LEN] {
    let mut tag = [0; TAG_LEN];
    tag.iter_mut().zip(mac.finalize().into_bytes()).for_each(|(place, byte)| *place = byte);
    tag
}
