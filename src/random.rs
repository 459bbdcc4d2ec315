//! Random numbers that need not be secret: jitter, and names that must differ.

/// SplitMix64: small, and every seed is as good as any other, so devices whose seeds differ in one bit spread all the same.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `most`, all of them as likely: of 32 random bits the share that `most` has of all numbers.
    pub(crate) fn up_to(&mut self, most: u32) -> u32 {
        let wide = (self.number() >> 32) * (u64::from(most) + 1);
        (wide >> 32) as u32
    }
}
