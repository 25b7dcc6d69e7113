--[[ A scene component that reports a whole step in one observation, WORLD.CENSUS.

The engine offers these numbers one by one and per player, or not at all (how many
apples are live). Every observation read from outside costs a crossing into Lua, so
one tensor of doubles carries them all, in this order:

  for each player: reward, dirt cells cleaned, players zapped, 1 if in the world else 0
  for each of `groups`: how many pieces are in a state of that group
]]

local args = require 'common.args'
local class = require 'common.class'
local tensor = require 'system.tensor'

local meltingpot = 'meltingpot.lua.modules.'
local component = require(meltingpot .. 'component')
local component_registry = require(meltingpot .. 'component_registry')

local PER_PLAYER = 4

local Census = class.Class(component.Component)

function Census:__init__(kwargs)
  kwargs = args.parse(kwargs, {
      {'name', args.default('Census')},
      {'groups', args.tableType},
  })
  Census.Base.__init__(self, kwargs)
  self._config.groups = kwargs.groups
end

function Census:addObservations(tileSet, world, observations)
  local groups = self._config.groups
  local simulation = self.gameObject.simulation
  local numPlayers = simulation:getNumPlayers()
  local census = tensor.DoubleTensor(PER_PLAYER * numPlayers + #groups):fill(0)

  local players = {}
  for _, object in pairs(simulation:getAvatarGameObjects()) do
    local avatar = object:getComponent('Avatar')
    players[avatar:getIndex()] = {
        avatar = avatar,
        zapper = object:getComponent('Zapper'),
        cleaner = object:hasComponent('Cleaner') and object:getComponent('Cleaner'),
    }
  end

  observations[#observations + 1] = {
      name = 'WORLD.CENSUS',
      type = 'tensor.DoubleTensor',
      shape = {PER_PLAYER * numPlayers + #groups},
      func = function(grid)
        for index, player in ipairs(players) do
          local at = PER_PLAYER * (index - 1)
          census(at + 1):val(player.avatar:getReward())
          census(at + 2):val(player.cleaner and player.cleaner.player_cleaned or 0)
          census(at + 3):val(player.zapper.num_others_player_zapped_this_step)
          census(at + 4):val(player.avatar:isAlive() and 1 or 0)
        end
        for i, group in ipairs(groups) do
          census(PER_PLAYER * numPlayers + i):val(grid:groupCount(group))
        end
        return census
      end
  }
end

component_registry.registerAllComponents{Census = Census}

return {Census = Census}
