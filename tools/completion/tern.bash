# SPDX-License-Identifier: Apache-2.0
#
# Completion of the command `tern` for bash: commands, options, values. Needs nothing but bash. Held against
# the help texts of the command by tests/completion.

_tern_options() { # COMMAND or COMMAND/SUBCOMMAND
	case $1 in
	train)
		echo --model --hidden --data --servers --workers --model-parallel --micro-batches --batch --epochs --steps --transport --comm --sync --sparse --seed \
			--lr --optimizer --momentum --beta1 --beta2 --rho --epsilon --weight-decay --clip-norm --clip-value --kernel-threads --spin --no-comm --no-eval --losses --curve --save --save-every --resume --first-step --on-failure --trace \
			--profile --json --quiet \
			--timeout --role --index --stage --cluster --features --classes --text --length --unit --dim --window --negative --min-count --sample \
			--pairs --samples --vocabulary --skew --consistency --staleness --listen --insecure --help
		;;
	perf) echo --op --sizes --transport --spin --block --rounds --round-time --threads --json --help ;;
	info) echo --memory --config --json --help ;;
	doctor) echo --peer --report --conformance --no-self-test --json --help ;;
	server) echo --listen --name --servers --index --map-version --budget --ps-workers --join --replicas --first --drain --tier --follow --version --in-place --http --transport --insecure --json --help ;;
	cluster) echo --server --timeout --wait --json --help ;;
	table) echo list create describe drop stats version export import inspect verify --help ;;
	table/list | table/describe) echo --server --timeout --json --help ;;
	table/stats) echo --server --timeout --hot --json --help ;;
	table/version) echo --server --timeout --to --json --help ;;
	table/create) echo --server --timeout --dim --dtype --rows --optimizer --lr --init --init-value --seed --budget \
		--eviction --ttl --admit-after --help ;;
	table/drop) echo --server --timeout --help ;;
	table/export) echo --server --timeout --kind --deltas-max --step --rate --keep --json --help ;;
	table/import) echo --server --timeout --sequence --json --help ;;
	table/inspect) echo --sequence --json --help ;;
	table/verify) echo --sequence --quiet --help ;;
	bench) echo ps --help ;;
	bench/ps) echo --servers --clients --threads --keys --skew --dim --dtype --optimizer --batch --reads --consistency \
		--staleness --duration --warmup --transport --spin --seed --check --json --quiet --help ;;
	top) echo --interval --count --help ;;
	status) echo --json --state --help ;;
	trace) echo --seconds --output --quiet --help ;;
	graph) echo show check plan run test --help ;;
	graph/show) echo --dims --nodes --dot --svg --json --help ;;
	graph/check) echo --dims --json --help ;;
	graph/plan) echo --servers --workers --model-parallel --micro-batches --sparse --async --stale --split --comm --dims \
		--nodes --json --help ;;
	graph/run) echo --inputs --output --dims --weights --threads --json --help ;;
	graph/test) echo --rtol --atol --threads --json --help ;;
	run) echo --nproc --port --keep-backend --show --json --help ;;
	demo) echo --epochs --steps --data --quiet --help ;;
	esac
}

# The values of an option, if it has a fixed choice of them.
_tern_choices() { # OPTION
	case $1 in
	--model) echo mlp fcn5 convnet convnet_small convnet_bn lstm_small gru_small alexnet vgg16 inception_v3 lstm gru charlm transformer seq2seq word2vec dlrm ;;
	--unit) echo byte word ;;
	--transport) echo auto shm tcp verbs ;;
	--comm) echo zerocopy copy rpc grpc none ;;
	--on-failure) echo stop shrink ;;
	--role) echo launcher server worker ;;
	--dtype) echo f32 bf16 f16 ;;
	--optimizer) # of graphs, of tables
		if [[ ${COMP_WORDS[1]} == train ]]; then
			echo sgd momentum adagrad adam rmsprop
		else
			echo none sgd momentum adagrad adam adamw ftrl rmsprop
		fi
		;;
	--init) echo zeros constant uniform normal ;;
	--eviction) echo none lru lfu ;;
	--consistency) echo async bsp ssp ;;
	--kind) echo alone base delta auto ;;
	esac
}

# The next word of a list with commas: what is there already stays in front and is not offered again.
_tern_list() { # CURRENT WORDS...
	local current=$1 before='' word
	shift
	[[ $current != *,* ]] || before=${current%,*},
	for word; do
		[[ ,$before == *,$word,* ]] || echo "$before$word"
	done
}

_tern() {
	local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} words
	COMPREPLY=()
	# --option=value comes as three words
	if [[ $current == = ]]; then
		current=
	elif [[ $previous == = ]]; then
		previous=${COMP_WORDS[COMP_CWORD - 2]}
	fi
	if ((COMP_CWORD == 1)); then
		words="train perf server table cluster bench graph run top status trace info doctor demo --help --version"
	else
		case $previous in
		--model | --transport | --comm | --on-failure | --role | --dtype | --optimizer | --init | --eviction | \
			--consistency | --kind | --unit) words=$(_tern_choices "$previous") ;;
		--op)
			words=$(_tern_list "$current" put notify get send call)
			compopt -o nospace 2>/dev/null
			;;
		--data | --follow | --tier | --save | --resume | --weights | --output)
			mapfile -t COMPREPLY < <(compgen -d -- "$current")
			compopt -o filenames 2>/dev/null
			return
			;;
		--losses | --curve | --trace | --cluster | --text | --report | --conformance | --dot | --svg | --output)
			mapfile -t COMPREPLY < <(compgen -f -- "$current")
			compopt -o filenames 2>/dev/null
			return
			;;
		--servers | --workers | --batch | --epochs | --steps | --save-every | --first-step | --seed | --lr | --momentum | --kernel-threads | \
			--beta1 | --beta2 | --rho | --epsilon | --weight-decay | --clip-norm | --clip-value | \
			--peer | --timeout | --index | --stage | --hidden | --features | --classes | --listen | \
			--sizes | --rounds | --round-time | --threads | --sequence | --rate | --keep | --deltas-max | --step | --to | --version | --name | --join | --replicas | --first | --drain | --map-version | --budget | \
			--ps-workers | --server | --dim | --rows | --init-value | --ttl | --admit-after | \
			--clients | --keys | --skew | --reads | --staleness | --duration | --warmup | --nproc | --port | --http | --window | --negative | --min-count | --sample | --pairs | \
			--samples | --vocabulary | --length | --hot | --dims | --model-parallel | --micro-batches | --stale | --split | --inputs | --rtol | --atol | --interval | --count | --seconds)
			return
			;;
		*)
			words=$(_tern_options "${COMP_WORDS[1]}")
			if [[ ${COMP_WORDS[1]} == bench ]] && ((COMP_CWORD > 2)); then
				words=$(_tern_options "bench/${COMP_WORDS[2]}")
			fi
			if [[ ${COMP_WORDS[1]} == graph ]] && ((COMP_CWORD > 2)); then
				words=$(_tern_options "graph/${COMP_WORDS[2]}")
				if ((COMP_CWORD == 3)) && [[ $current != -* ]]; then # a model, or a folder of cases
					mapfile -t COMPREPLY < <(compgen -f -- "$current"; compgen -W "mlp fcn5 $words" -- "$current")
					compopt -o filenames 2>/dev/null
					return
				fi
			fi
			if [[ ${COMP_WORDS[1]} == cluster ]] && ((COMP_CWORD == 2)); then
				words+=" status drain undrain give-up balance pause resume"
			fi
			if [[ ${COMP_WORDS[1]} == table ]] && ((COMP_CWORD > 2)); then
				words=$(_tern_options "table/${COMP_WORDS[2]}")
				if ((COMP_CWORD == 3)) && [[ $current != -* ]]; then # the directory of checkpoints
					mapfile -t COMPREPLY < <(compgen -d -- "$current" && compgen -W "$words" -- "$current")
					compopt -o filenames 2>/dev/null
					return
				fi
			fi
			;;
		esac
	fi
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

complete -F _tern tern
