//! The golden images of the library's tests: dumps of devices, as they lie in host-tests/golden.

/// Their names, and the size of their pages.
pub(crate) const GOLDEN: [(&str, usize); 3] =
    [("word-8-page-256", 256), ("word-8-page-4096", 4096), ("word-32-page-2048", 2048)];

/// One of them: the lines of an image that are not blank, behind their address.
pub(crate) fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/../host-tests/golden/{name}.image", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("it is there");
    let mut lines = text.lines();
    let len = lines.next().and_then(|len| len.parse().ok()).expect("it begins with its length");
    let mut image = vec![0xff; len];
    for line in lines {
        let (address, digits) = line.split_once(' ').expect("an address and bytes");
        let address = usize::from_str_radix(address, 16).expect("an address");
        let bytes = hex::decode(digits).expect("bytes");
        image[address..address + bytes.len()].copy_from_slice(&bytes);
    }
    image
}
