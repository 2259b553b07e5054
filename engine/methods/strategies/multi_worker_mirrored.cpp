// TensorFlow's MultiWorkerMirroredStrategy (tensorflow/python/distribute/cross_device_ops.py): data
// parallelism that concatenates gradients into packs and all-reduces each of them
// (lowering/fused.cpp). Without the key `bucket`, all gradients are one pack (bytes_per_pack = 0),
// so no all-reduce runs beside backward. Each step ends on all ranks before the next one begins.
// Its RING is method.collective = "ring"; its AUTO, which takes NCCL, is "automatic". A rank that
// dies ends the run, which is started again from a checkpoint: recovery.policy = "restart".
#include "engine/methods/lowering/exchange/gradient_sync.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

const Register method(
    "multi-worker-mirrored",
    {.summary = "data parallelism, gradients in packs, a barrier at the end of a step",
     .source = "TensorFlow, tf.distribute.MultiWorkerMirroredStrategy",
     .combines = {.shares = true, .offload = false, .one_bucket = true},
     .defaults =
         [](plan::Plan& plan) {
           if (!plan.exchange.bucket) plan.exchange.bucket = Bytes(0);
         },
     .sync = [](const plan::Plan&) -> const GradientSync& { return multi_worker_mirrored(); }});

}  // namespace
}  // namespace rehearse::methods
