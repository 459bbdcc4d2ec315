//! Who may speak for a device, and who may answer it: tags with keys that are derived from the device's secret.

use core::fmt;

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
        let _ = secret.0;
        todo!()
    }

    /// The tag of a batch.
    pub fn batch_tag(&self, bytes: &[u8]) -> [u8; TAG_LEN] {
        let _ = (bytes, self.request);
        todo!()
    }

    /// The tag of an answer to the batch with that tag.
    pub fn answer_tag(&self, batch_tag: &[u8; TAG_LEN], bytes: &[u8]) -> [u8; TAG_LEN] {
        let _ = (batch_tag, bytes, self.answer);
        todo!()
    }

    /// Whether the tag at an envelope's end is right; compared in constant time. Gives the tag.
    pub fn verify_batch(&self, envelope: &[u8]) -> Option<[u8; TAG_LEN]> {
        let _ = envelope;
        todo!()
    }

    /// What stands before the tag of an answer to the batch with that tag; `None` if its tag is not right.
    pub fn open_answer<'e>(&self, batch_tag: &[u8; TAG_LEN], envelope: &'e [u8]) -> Option<&'e [u8]> {
        let _ = (batch_tag, envelope);
        todo!()
    }
}
