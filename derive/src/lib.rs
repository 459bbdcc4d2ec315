//! Derives `EncodedSize` and `Record`.
