// The command line of `rehearse train`. Its work is in cli/training/.
#include <memory>

#include "cli/commands/training.h"
#include "cli/console/command.h"

namespace rehearse::cli {

void add_train(CLI::App& app, Context& context) {
  CLI::App* command = add_command(
      app, "train", "Really train a job, in real processes",
      "  rehearse train experiments/demo-ddp.toml --nproc 2\n"
      "  rehearse train experiments/demo-ddp.toml --nproc 2 --resume --set train.steps=120\n"
      "  rehearse train planned.toml --nproc 4 --rehearsed\n"
      "  torchrun --no-python --nproc-per-node 2 rehearse train experiments/demo-ddp.toml");
  auto options = std::make_shared<TrainFlags>();
  add_job(*command, options->job);
  command
      ->add_option("--nproc", options->nproc,
                   "Start so many ranks here; without it, be one rank of a launcher")
      ->check(CLI::Range(1, 4096));
  CLI::Option* nproc = command->get_option("--nproc");
  CLI::Option* nnodes =
      command
          ->add_option("--nnodes", options->nnodes,
                       "Elastic: go on with so many nodes, each with a launcher and up to --nproc "
                       "ranks, as they come and go")
          ->type_name("MIN:MAX")
          ->needs(nproc);
  command
      ->add_option("--rendezvous", options->rendezvous,
                   "Folder in which launchers of --nnodes meet, shared by all nodes; without it, "
                   "rendezvous in train.out")
      ->type_name("FOLDER")
      ->needs(nnodes);
  CLI::Option* resume = command->add_flag("--resume", options->resume,
                                          "Go on from the newest checkpoint in train.out");
  CLI::Option* from = command
                          ->add_option("--resume-from", options->resume_from,
                                       "Go on from this checkpoint, or the newest in this folder")
                          ->type_name("PATH")
                          ->excludes(resume);
  command
      ->add_flag("--overwrite", options->overwrite,
                 "Begin anew where train.out holds a run, which is removed")
      ->excludes(resume)
      ->excludes(from);
  command->add_flag("--rehearsed", options->rehearsed,
                    "Refuse a plan that was not rehearsed, or rehearsed badly");
  command
      ->add_option("--faults", options->faults,
                   "Ranks replay this fault trace on themselves (as faults.trace of the job)")
      ->type_name("FILE");
  command
      ->add_option("--import", options->weights,
                   "Begin with the weights of Hugging Face's model.safetensors or its index")
      ->type_name("FILE");
  command
      ->add_option("--export", options->out_weights,
                   "Write the last weights as Hugging Face's model.safetensors")
      ->type_name("FILE");
  command->add_option("--trace", options->trace, "Write a Chrome/Perfetto trace of the first steps")
      ->type_name("FILE");
  command
      ->add_option("--profile-out", options->profile_out,
                   "Observe how each layer's gradient varies and write it into this profile")
      ->type_name("FILE");
  command->callback([&context, options] {
    options->resume = options->resume || !options->resume_from.empty();
    context.run = [&context, options] { return training().train(context, *options); };
  });
}

}  // namespace rehearse::cli
