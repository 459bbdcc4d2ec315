//! What operators change and ask for.

use pillarbox::DeviceId;
use pillarbox_receiver::store::{Change, Device as DeviceRow, DeviceQuery, Role, StoreError, TokenRow};

use super::{Device, Fresh, INCARNATION, NOW, SECRET, on_both};

fn names(devices: &[DeviceRow]) -> Vec<&str> {
    devices.iter().map(|device| device.name.as_str()).collect()
}

on_both! {
    devices_are_added_once_and_found_by_name,
    devices_are_listed_page_by_page_in_the_order_of_their_bytes,
    tokens_are_found_by_their_hash_until_they_are_revoked,
}

async fn devices_are_added_once_and_found_by_name(fresh: Fresh) {
    let meter = Device::add(fresh.store.clone(), "meter", "acme").await;
    let add = Change::Add { device: meter.name.clone(), tenant: "other".into(), secret: SECRET };
    let refused = fresh.store.change(add, NOW).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    let found = fresh.store.device(&meter.name).await.expect("it is sound").expect("it was added");
    assert_eq!((found.id, &found.tenant[..], found.created_ms), (meter.id, "acme", NOW));
    assert_eq!((found.heard_ms, found.current_incarnation, found.revoked_ms), (None, None, None));
    meter.take(&meter.batch(0..1)).await;
    let found = fresh.store.device(&meter.name).await.expect("it is sound").expect("it was added");
    assert_eq!((found.heard_ms, found.current_incarnation), (Some(NOW), Some(INCARNATION)));
    let nobody = DeviceId::new("nobody").expect("it is a name");
    assert!(fresh.store.device(&nobody).await.expect("it is sound").is_none());
    assert!(fresh.store.door(&nobody).await.expect("it is sound").is_none());
    let revoke = fresh.store.change(Change::Revoke(nobody), NOW).await;
    assert!(matches!(revoke, Err(StoreError::NotFound(_))), "{revoke:?}");
    for now_ms in [NOW + 1, NOW + 2] {
        fresh.store.change(Change::Revoke(meter.name.clone()), now_ms).await.expect("it is there");
    }
    let found = fresh.store.device(&meter.name).await.expect("it is sound").expect("it was added");
    assert_eq!(found.revoked_ms, Some(NOW + 1), "the first time counts");
    assert_eq!(fresh.store.fleet().await.expect("it is sound").devices, 0);
}

async fn devices_are_listed_page_by_page_in_the_order_of_their_bytes(fresh: Fresh) {
    for name in ["b_2", "B-1", "a", "b-1", "_", "0"] {
        Device::add(fresh.store.clone(), name, if name.starts_with('b') { "acme" } else { "default" }).await;
    }
    let list = |query: DeviceQuery| {
        let store = fresh.store.clone();
        async move { store.devices(query).await.expect("it is sound") }
    };
    let all = DeviceQuery { limit: 100, ..DeviceQuery::default() };
    let sorted = ["0", "B-1", "_", "a", "b-1", "b_2"];
    assert_eq!(names(&list(all.clone()).await), sorted);
    let (mut seen, mut after) = (Vec::new(), None);
    for _ in 0..3 {
        let page = list(DeviceQuery { after, limit: 2, ..DeviceQuery::default() }).await;
        after = page.last().map(|device| device.name.clone());
        seen.extend(page);
    }
    assert_eq!(names(&seen), sorted);
    let acme = DeviceQuery { tenant: Some("acme".into()), ..all.clone() };
    assert_eq!(names(&list(acme).await), ["b-1", "b_2"]);
    // No character stands for others.
    let containing = DeviceQuery { containing: Some("_".into()), ..all };
    assert_eq!(names(&list(containing).await), ["_", "b_2"]);
}

async fn tokens_are_found_by_their_hash_until_they_are_revoked(fresh: Fresh) {
    let token = |role, tenant: Option<&str>| TokenRow {
        id: 0,
        role,
        tenant: tenant.map(Into::into),
        label: "for a test".into(),
        created_ms: NOW,
        revoked_ms: None,
    };
    let store = &fresh.store;
    let client = store.add_token([1; 32], token(Role::Client, Some("acme"))).await.expect("it is new");
    let admin = store.add_token([2; 32], token(Role::Admin, None)).await.expect("it is new");
    assert_ne!(client, admin);
    let found = store.token([1; 32]).await.expect("it is sound").expect("it was added");
    assert_eq!((found.id, found.role, found.tenant.as_deref()), (client, Role::Client, Some("acme")));
    assert!(store.token([3; 32]).await.expect("it is sound").is_none());
    store.revoke_token(client, NOW + 5).await.expect("it is there");
    assert!(store.token([1; 32]).await.expect("it is sound").is_none());
    let tokens = store.tokens().await.expect("it is sound");
    let tokens: Vec<_> = tokens.iter().map(|token| (token.id, token.revoked_ms)).collect();
    assert_eq!(tokens, [(client, Some(NOW + 5)), (admin, None)]);
    let unknown = store.revoke_token(admin + 10, NOW).await;
    assert!(matches!(unknown, Err(StoreError::NotFound(_))), "{unknown:?}");
}
