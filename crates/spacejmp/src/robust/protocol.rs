//! The steps of the robust lock, generic over its words. The model checker (`model`) thus runs the
//! very code that programs run.
//!
//! All accesses of the words have one order. A thread that reads counts itself, and then looks at
//! the owner. A thread that writes becomes the owner, and then looks at the counts. So one of the
//! two sees the other. A reader that finds an owner takes itself out; a writer waits for those that
//! it finds counted.
//!
//! A place whose process was found dead may have another one by the time its word is changed. So
//! each change of another one's word compares all of it first, and its number (JUMP-9) is part
//! of that.

/// The owner's place + 1.
pub(super) const PLACE: u64 = 0xffff;
/// A writer died inside.
pub(super) const POISONED: u64 = 1 << 16;
/// The owner has waited for all readers, and may have changed something.
pub(super) const INSIDE: u64 = 1 << 17;
const NUMBER: u64 = 1 << 18;

/// The threads of a place.
pub(super) const COUNT: u64 = 0xffff_ffff;
const PLACE_NUMBER: u64 = 1 << 32;

/// A word that processes share. All accesses have one order.
pub(super) trait Word {
    fn load(&self) -> u64;
    fn store(&self, value: u64);
    /// Gives the value before.
    fn add_one(&self) -> u64;
    /// Gives the value before.
    fn subtract_one(&self) -> u64;
    /// Raises it to at least `to`.
    fn raise(&self, to: u64);
    /// Clears these bits.
    fn clear(&self, bits: u64);
    /// Makes `from` to `to`; gives the value that it has instead.
    fn replace(&self, from: u64, to: u64) -> Result<(), u64>;
}

/// One process's hold of a lock: its words, and what the system knows of processes.
pub(super) trait Protocol {
    type Word: Word;
    /// How long a wait may be.
    type Patience: Copy;
    /// Why a lock is not taken.
    type Refused;

    fn owner(&self) -> &Self::Word;
    /// How many wait for the owner.
    fn waiting(&self) -> &Self::Word;
    /// Places that were ever taken, [`Self::PLACES`] at most.
    fn used(&self) -> &Self::Word;
    fn count(&self, place: u64) -> &Self::Word;
    /// The most there are.
    const PLACES: u64;

    /// The place of this process.
    fn place(&self) -> u64;
    /// The bit by which this span is poisoned; none of a heap.
    fn poison(&self) -> u64;
    /// Whether no process has the place.
    fn is_free(&self, place: u64) -> Result<bool, Self::Refused>;
    /// Waits for a change of `word`, and ends early at any time.
    fn sleep(
        &self,
        word: &Self::Word,
        found: u64,
        patience: Self::Patience,
    ) -> Result<(), Self::Refused>;
    /// Ends the sleeps on `word`.
    fn wake(&self, word: &Self::Word);
    fn poisoned(&self) -> Self::Refused;
    /// The lock belongs to a place that there is not.
    fn wild(&self, place: u64) -> Self::Refused;
    /// A test may end the process here.
    fn step(&self);

    /// Takes away what a dead process has left in the place of this one.
    fn clear_place(&self) {
        // Before the first count: a writer that does not see this is seen by the readers.
        self.used().raise(self.place() + 1);
        let count = self.count(self.place());
        let mut found = count.load();
        while let Err(now) = count.replace(found, without_threads(found)) {
            found = now;
        }
        self.wake(count);
        self.step();
        let owner = self.owner().load();
        if owner & PLACE == self.place() + 1 {
            self.bury(owner);
        }
    }

    /// Takes a dead owner out. Does nothing if somebody else has.
    fn bury(&self, owner: u64) {
        let poison = match owner & INSIDE != 0 {
            true => self.poison(),
            false => 0,
        };
        let _somebody_else_has = self.owner().replace(owner, freed(owner) | poison);
        self.step();
        self.wake(self.owner());
    }

    /// Whether the process with that place has died.
    fn is_dead(&self, place: u64) -> Result<bool, Self::Refused> {
        match place == self.place() {
            true => Ok(false),
            false => self.is_free(place),
        }
    }

    /// Takes the lock for a reader.
    #[inline]
    fn enter_shared(&self, patience: Self::Patience) -> Result<(), Self::Refused> {
        loop {
            self.count(self.place()).add_one();
            self.step();
            let owner = self.owner().load();
            if owner & (PLACE | self.poison()) == 0 {
                return Ok(());
            }
            self.leave_shared();
            if !is_owned(owner) {
                return Err(self.poisoned());
            }
            self.wait_for_owner(owner, patience)?;
        }
    }

    #[inline]
    fn leave_shared(&self) {
        let count = self.count(self.place());
        let before = count.subtract_one();
        self.step();
        if is_owned(self.owner().load()) && before & COUNT == 1 {
            self.wake(count);
        }
    }

    /// Takes the lock for a writer; a poisoned one if `recovers`.
    fn enter_exclusive(
        &self,
        patience: Self::Patience,
        recovers: bool,
    ) -> Result<(), Self::Refused> {
        let own = loop {
            let owner = self.owner().load();
            if is_owned(owner) {
                self.wait_for_owner(owner, patience)?;
            } else if owner & self.poison() != 0 && !recovers {
                return Err(self.poisoned());
            } else {
                let own = freed(owner) | (self.place() + 1);
                if self.owner().replace(owner, own).is_ok() {
                    break own;
                }
            }
        };
        self.step();
        let used = self.used().load().min(Self::PLACES);
        for place in 0..used {
            if let Err(refused) = self.wait_for_readers(place, patience) {
                self.release(own);
                return Err(refused);
            }
        }
        self.step();
        self.owner().store(own | INSIDE);
        self.step();
        Ok(())
    }

    /// The poison is gone: the writer that is inside has made the data right.
    fn heal(&self) {
        self.owner().clear(POISONED);
        self.step();
    }

    fn release(&self, owner: u64) {
        self.owner().store(freed(owner));
        self.step();
        if self.waiting().load() != 0 {
            self.wake(self.owner());
        }
    }

    /// A thread of this process leaves, whatever it was.
    #[inline]
    fn leave(&self) {
        let owner = self.owner().load();
        self.step();
        // A writer inside is alone (JUMP-7), so it is this thread.
        match owner & (PLACE | INSIDE) == (self.place() + 1) | INSIDE {
            true => self.release(owner),
            false => self.leave_shared(),
        }
    }

    /// Waits until the owner is another one, or has died.
    #[cold]
    fn wait_for_owner(&self, owner: u64, patience: Self::Patience) -> Result<(), Self::Refused> {
        let place = (owner & PLACE) - 1;
        if place >= Self::PLACES {
            return Err(self.wild(place));
        }
        if self.is_dead(place)? {
            self.bury(owner);
            return Ok(());
        }
        self.waiting().add_one();
        self.step();
        let slept = self.sleep(self.owner(), owner, patience);
        self.waiting().subtract_one();
        slept
    }

    /// Waits until no living thread of that place reads.
    fn wait_for_readers(&self, place: u64, patience: Self::Patience) -> Result<(), Self::Refused> {
        let count = self.count(place);
        loop {
            let found = count.load();
            if found & COUNT == 0 {
                return Ok(());
            }
            if self.is_dead(place)? {
                let _new_process_has = count.replace(found, without_threads(found));
                self.step();
                continue;
            }
            self.sleep(count, found, patience)?;
        }
    }
}

fn is_owned(word: u64) -> bool {
    word & PLACE != 0
}

/// The owner's word without an owner.
fn freed(word: u64) -> u64 {
    (word & !(PLACE | INSIDE)).wrapping_add(NUMBER)
}

/// A place's word without threads.
fn without_threads(word: u64) -> u64 {
    (word & !COUNT).wrapping_add(PLACE_NUMBER)
}
