// What the analysis of hazards keeps of each piece of a storage, between two boundaries of views.
// Internal to engine/link.
#pragma once
#include "engine/base/id.h"
#include "engine/link/lists.h"
#include "engine/program/program.h"

namespace rehearse::link {

/// A read of an earlier step's version (age >= 1), and the layout that the read expects.
struct OldRead {
  Id op = none, view = none;
  program::Layout layout = {};
  int age = 0;
};

/// A write of a piece that some use may still see. unread: nothing has read it yet.
struct Write {
  Id op = none;
  program::Layout layout = {};
  bool unread = false;
};

struct Piece {
  Id first_write = none;
  Write last = {};
  Id earlier = none;  // index of the writes before it that it does not replace in every step
  Lists<Id>::List reads = {};     // of this step's version, since the last write
  Lists<OldRead>::List old = {};  // of earlier steps' versions
};

}  // namespace rehearse::link
