//! What embassy-net knows about the link, told to the dispatcher.

use embassy_futures::select::select;
use embassy_sync::blocking_mutex::raw::RawMutex;

use crate::Trigger;

/// Rings [`link_up`](Trigger::link_up) whenever link and configuration are both up again, for ever: what waited after failures is
/// tried soon. Run it beside the stack's runner and the dispatcher.
///
/// The first time counts too: a dispatcher that has already failed because the link was slow to come up need not wait.
///
/// A stack wakes one task when its state changes. Should others wait for its link or its configuration as well, they wake each other
/// all the time: let one task do it, and tell the others.
pub async fn watch_link<M: RawMutex>(stack: embassy_net::Stack<'_>, trigger: Trigger<'_, M>) -> ! {
    loop {
        // With a fixed address the configuration stays while the link is down, and without a cable a lease does for a
        // while: only both together are a network.
        while !(stack.is_link_up() && stack.is_config_up()) {
            stack.wait_link_up().await;
            stack.wait_config_up().await;
        }
        info!("the link is up");
        trigger.link_up();
        select(stack.wait_link_down(), stack.wait_config_down()).await;
    }
}
