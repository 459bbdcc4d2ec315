//! A small disk is full when a test says so, with the error that a real one gives, and is gone afterwards.

use std::io::ErrorKind;

use receiver_testkit::SmallDisk;

#[test]
fn a_disk_is_full_and_free_again() {
    if !SmallDisk::is_possible() {
        println!("only root may mount a small disk: nothing was tested");
        return;
    }
    let disk = SmallDisk::of_mib(2);
    let path = disk.path().to_path_buf();
    let file = path.join("file");
    std::fs::write(&file, [1; 1024]).unwrap();
    disk.fill();
    assert_eq!(disk.free_bytes(), 0);
    let full = std::fs::write(path.join("other"), [2; 1024]).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert_eq!(std::fs::read(&file).unwrap(), [1; 1024], "what was there is there");
    disk.free();
    std::fs::write(path.join("other"), vec![2; 1024 * 1024]).unwrap();
    let larger = std::fs::write(path.join("larger"), vec![3; 2 * 1024 * 1024]).unwrap_err();
    assert_eq!(larger.kind(), ErrorKind::StorageFull);
    std::fs::remove_file(path.join("larger")).unwrap();
    disk.fill_but(16 * 1024);
    assert!((16 * 1024..20 * 1024).contains(&disk.free_bytes()), "{}", disk.free_bytes());
    disk.free();
    disk.free();
    let open = std::fs::File::open(&file).unwrap();
    drop(disk);
    assert!(!path.exists(), "also while somebody has a file open");
    drop(open);
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(path.to_str().unwrap()));
}
