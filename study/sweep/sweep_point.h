// The answer about one point of a sweep.
#pragma once
#include "study/sweep/sweep.h"

namespace rehearse::study {

/// What the sweep asks about the point's job: metrics and warnings, or why the job is refused.
Row answer_of(const Sweep& sweep, const Point& point);

}  // namespace rehearse::study
