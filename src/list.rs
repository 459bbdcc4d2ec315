//! Taking elements out of a short list, whose order does not matter, without the code that keeps it.

use heapless::Vec;

/// Takes out an element; the last takes its place.
pub(crate) fn take_at<T: Clone, const N: usize>(list: &mut Vec<T, N>, at: usize) {
    if let Some((last, others)) = list.split_last_mut()
        && let Some(place) = others.get_mut(at)
    {
        copy(last, place);
    }
    list.pop();
}

/// Two places that are known not to be the same: else the compiler calls memmove, which takes 1.3 KB.
#[inline(never)]
fn copy<T: Clone>(from: &T, to: &mut T) {
    to.clone_from(from);
}

/// Takes out every element that `is_it` names.
pub(crate) fn take_where<T: Clone, const N: usize>(list: &mut Vec<T, N>, is_it: impl Fn(&T) -> bool) {
    let mut at = 0;
    while let Some(element) = list.get(at) {
        if is_it(element) {
            take_at(list, at);
        } else {
            at += 1;
        }
    }
}
